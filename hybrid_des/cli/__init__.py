"""The command line: `hybrid-des FILE`, or one of the commands in `commands`."""

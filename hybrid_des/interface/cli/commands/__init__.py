"""The commands, one file each; `cli.command_files` says what such a file defines."""

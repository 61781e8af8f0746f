"""Links, the messages on them, and the topologies that wire them up."""

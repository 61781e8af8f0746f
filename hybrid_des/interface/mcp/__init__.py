"""The tools of `hybrid-des mcp`, for agents: simulate, explain, compare, search, init and docs over MCP (stdio).

server       speaks the protocol, and validates arguments       arguments
worker       a process per call, killed when its budget ends    fence
tools        what each tool does                                answers
"""

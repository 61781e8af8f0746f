"""Why a step is as long as it is: the graph of causes of a traced run, its critical paths, slack and idle time.

graph    points in time and the edges that release them: every time is the maximum over its edges
slack    how late each point may be, how far an activity may grow, what it costs (drag); least and most time of ranks,
         kinds and links over all critical paths
paths    the critical path in pieces, and how many there are; idle time in pieces, named by what happened meanwhile
"""

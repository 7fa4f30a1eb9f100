"""What the verbs of a cluster do: jobs, their state, the cluster's health, and the files that make one.

In: a verb's parsed options. Out: its exit code, and what it prints. What is printed is made elsewhere.
"""


"""A plan of a job -> pods that ran it: TPU types, what a pod asks for, the JobSet of a long step, the process in it."""

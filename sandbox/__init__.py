"""Where untrusted code runs: throwaway sandboxes with hard limits.

This package knows nothing of agents, models or queues; it never imports `worker`.
"""

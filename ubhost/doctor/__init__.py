"""``ubnode doctor``: is this node fit for UB pods, and if not, what is wrong and what to do.

``facts`` looks (and changes nothing), the checks in ``host``, ``cluster`` and ``compatibility`` judge (pure),
``report`` tells.
"""

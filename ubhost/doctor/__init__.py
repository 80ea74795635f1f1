"""``ubnode doctor``: is this node fit for UB pods, and if not, what is wrong and what to do.

``look`` collects ``facts`` and changes nothing; the checks in ``host``, ``cluster`` and ``compatibility`` judge them
(pure); ``report`` tells.
"""

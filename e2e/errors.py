"""What ends a run before its tests can tell anything."""


class HarnessError(Exception):
    """The harness, not the software under test, is at fault; the message says what to do."""

"""What happened, as facts. Writers only write events; every view only reads them.

events        event types; JSON-lines writer and reader; schema version
timers        the phases of a step
environment   versions, git state and hardware of a run
sinks         console and TensorBoard, fed by events
"""

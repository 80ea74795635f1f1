"""The command line for people: ubnode show, sim, attachments, volumes, qos."""

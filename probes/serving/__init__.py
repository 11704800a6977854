"""The probe of somebody's running server: what it can do, what is sent to it, and what its replies say.

The room speaks to ``targets.serving`` alone and knows no HTTP. Nothing of the schedule is in our hands there, so three
findings are kept apart: replies that differ without load (run to run), beside other requests (co-batching), and after
a prefix-cache hit. Clocks pace the load and fill ``timing.json``; nothing that is compared holds one.
"""

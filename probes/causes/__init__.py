"""From symptom to cause: which operator parts two runs first, and the smallest traffic that still parts them.

Works on targets whose schedule can be scripted; see ``targets.protocol.ScriptedTarget``.
"""

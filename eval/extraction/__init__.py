"""From a reply to a verdict: pure rules with a version. Nothing of a reply is evaluated, and no number is unbounded."""

from detharness.eval.extraction.channel import DEFAULT_THINK_TAGS, final_channel
from detharness.eval.extraction.rules import RULES_VERSION, Extracted, judge_reply, rules_fingerprint

__all__ = ["DEFAULT_THINK_TAGS", "RULES_VERSION", "Extracted", "final_channel", "judge_reply", "rules_fingerprint"]

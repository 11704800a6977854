"""The probe of a library's own paths: the same prompts alone, in a padded batch, and under continuous batching.

What is compared, written down and reported is as for the engine; what is played is not steps but whole paths.
"""

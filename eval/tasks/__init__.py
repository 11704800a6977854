"""Tasks: one module each, found by being in this folder. ``docs/tasks.md`` shows how to add one."""

from detharness.eval.tasks.loading import LoadedTask, load_task, messages_for, task_names

__all__ = ["LoadedTask", "load_task", "messages_for", "task_names"]

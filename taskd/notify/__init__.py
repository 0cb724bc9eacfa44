"""Tells programs and webhooks what happens to a job (TASKD_NOTIFY): queue.py has the threads,
command.py and webhook.py deliver. What is told is decided in core/notices.py."""

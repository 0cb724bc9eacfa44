"""Notifies programs and webhooks of a job's events (TASKD_NOTIFY): content.py makes the notices,
slow_ranks.py decides which ranks are persistently slow, queue.py has the threads, command.py and
webhook.py deliver."""

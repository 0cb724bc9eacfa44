"""Tells programs and webhooks what happens to a job (TASKD_NOTIFY): content.py says what is in a
notice, slow_ranks.py which rank is slow for long enough, queue.py has the threads, command.py and
webhook.py deliver."""

"""django_xaspool: the backend and its worker, with the tasks of Django 6 or of the package django-tasks."""

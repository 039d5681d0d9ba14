"""Let another process lead in each program that finds this module in its PYTHONPATH (see ``tests.led``)."""

from tests.led import another_process_leads

_leads = another_process_leads()  # (kept, because the generator ends with its last reference)
_leads.__enter__()

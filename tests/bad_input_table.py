"""Another name of `python -m tests.fault_table --write`."""

from tests.fault_table import PAGES, brought_up_to_date

for page in PAGES:
    page.write_text(brought_up_to_date(page.read_text(encoding="utf-8")), encoding="utf-8")

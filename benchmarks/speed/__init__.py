"""zerda_pg beside hand-written SQL and beside other memory stores on Postgres."""

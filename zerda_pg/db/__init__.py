"""The database: schema, statements, operations, engines, migrations, the embedded server."""

"""Pure ranking: values in, values out, no database and no model."""

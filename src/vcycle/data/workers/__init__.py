"""Who decodes: processes or threads that answer parts of batches."""

"""Who decodes: processes or threads that turn parts of batches into pixels."""

"""What a UB host is: errors, model, readers, providers, the ledger; ``kernel`` holds the only system calls."""

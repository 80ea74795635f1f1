"""What ``ubnode show`` prints: tables for people, stable JSON for programs, pictures. Pure."""

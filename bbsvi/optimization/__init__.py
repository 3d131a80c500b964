"""The loop over steps, when to stop it, and which iterates to average."""

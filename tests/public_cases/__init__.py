"""Cases that people reported to variational-inference libraries, with their right answers restated."""

"""Observers that count decisions for Prometheus and OpenTelemetry."""

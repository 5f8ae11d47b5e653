"""The model of the admin page. It has no table and no migration: the page reads the store of the limiter."""

from typing import Any

from django.db import models


class NoRows(models.Manager):  # type: ignore[misc] # Django has no types
    """Finds nothing, because there is no table. ``dumpdata`` reads all models."""

    def get_queryset(self) -> Any:
        return super().get_queryset().none()


class LimitedClient(models.Model):  # type: ignore[misc] # Django has no types
    """A key of the store. The permissions and the log of Django's admin need a model."""

    key = models.CharField(max_length=255, primary_key=True)
    objects = NoRows()

    class Meta:
        managed = False
        base_manager_name = "objects"
        default_permissions = ("view", "change")
        verbose_name = "limited client"

    def __str__(self) -> str:
        return str(self.key)

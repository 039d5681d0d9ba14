"""Create the table of the outbox."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies: list[tuple[str, str]] = []
    operations = [
        migrations.CreateModel(
            name="OutboxTask",
            fields=[
                ("id", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("backend", models.CharField(max_length=127)),
                ("queue", models.CharField(max_length=127)),
                ("body", models.TextField()),
            ],
        )
    ]

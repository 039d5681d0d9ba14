"""Spans for tests: an SDK that keeps the spans of this process, and programs that write their spans to files."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import format_span_id, format_trace_id

ROOT = Path(__file__).parents[2]

TO_A_FILE = """
import json, os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

class ToAFile(SpanExporter):
    def export(self, spans):
        with open(os.environ["SPANS"], "a") as file:
            for span in spans:
                file.write(span.to_json(indent=None) + "\\n")
        return SpanExportResult.SUCCESS

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ToAFile()))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("test")
"""
"""The beginning of a program that appends each of its spans, as a line of JSON, to the file $SPANS."""


class Recorder:
    """An SDK with the spans that have ended in this process."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def all(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [found] = self.all(name)
        return found

    @property
    def names(self) -> list[str]:
        return [span.name for span in self._exporter.get_finished_spans()]


def trace_of(span: ReadableSpan) -> int:
    return span.get_span_context().trace_id


def id_of(span: ReadableSpan) -> int:
    return span.get_span_context().span_id


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def traceparent(span: ReadableSpan) -> str:
    """The header that carries the context of a recorded span."""
    context = span.get_span_context()
    return f"00-{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}-{context.trace_flags:02x}"


@dataclass(frozen=True)
class Written:
    """A span that another process wrote to its file. The ids are hexadecimal texts, as in a ``traceparent``."""

    name: str
    trace: str
    id: str
    parent: str | None
    links: tuple[str, ...]
    attributes: dict[str, Any]


def written(file: Path) -> Iterator[Written]:
    for line in file.read_text().splitlines():
        found = json.loads(line)
        yield Written(
            found["name"], found["context"]["trace_id"][2:], found["context"]["span_id"][2:],
            found["parent_id"] and found["parent_id"][2:],
            tuple(link["context"]["span_id"][2:] for link in found["links"]), found["attributes"],
        )  # fmt: skip


def run(*words: str, cwd: Path = ROOT, **environment: str) -> str:
    """Run Python with these arguments, and return its output."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout

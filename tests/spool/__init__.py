"""Tests of the public interface: the guarantees for applications, independent of the engine below."""

"""The counts of each model stay apart, whatever the models are called."""

from __future__ import annotations

from dragoman.serve.metrics import Metrics


def test_models_of_one_name_are_counted_apart_and_rows_only_grow() -> None:
    metrics = Metrics()
    for num_rows in (3, 3, 5):
        metrics.see(("demo", "en", "de"), num_rows=num_rows, waiting_pieces=2)
        metrics.see(("demo", "de", "en"), num_rows=1, waiting_pieces=0)
    lines = metrics.text().decode().splitlines()
    assert "# TYPE dragoman_rows_total counter" in lines
    assert 'dragoman_rows_total{model="demo",source="en",target="de"} 5.0' in lines
    assert 'dragoman_rows_total{model="demo",source="de",target="en"} 1.0' in lines
    assert 'dragoman_waiting_pieces{model="demo",source="en",target="de"} 2.0' in lines


def test_a_path_with_a_name_in_it_is_counted_as_one() -> None:
    metrics = Metrics({"/models", "/download_file/{name}"})
    for path in ("/models", "/download_file/a.txt", "/download_file/b.txt", "/a/b", "/c"):
        with metrics.request(path) as answer:
            answer.status = 200
    lines = metrics.text().decode().splitlines()
    assert 'dragoman_requests_total{path="/download_file/{name}",status="200"} 2.0' in lines
    assert 'dragoman_requests_total{path="/models",status="200"} 1.0' in lines
    assert 'dragoman_requests_total{path="other",status="200"} 2.0' in lines

"""The routes of files and batches, in OpenAI's dialect."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.serving.batches import batch_routes, file_routes
from octavo.serving.batches.schema import (
    Batch,
    BatchList,
    BatchRequest,
    DeletedBatch,
    DeletedFile,
    FileList,
    FileObject,
    FileUpload,
)
from octavo.transport.route import Route

_PAGE = (
    ("limit", "The most that are listed."),
    ("after", "The id behind which the page begins."),
)
_ORDER = ("order", "desc (the newest first, the default) or asc.")
BATCH_ROUTES: Sequence[Route] = (
    Route(
        *("POST", "/v1/files", file_routes.upload, "Store a file of requests for a batch."),
        *(FileUpload, FileObject),
        request_kind="multipart/form-data",
    ),
    Route(
        *("GET", "/v1/files", file_routes.files, "The files of this key."),
        response=FileList,
        query=(*_PAGE, _ORDER, ("purpose", "batch or batch_output.")),
    ),
    Route(
        *("GET", "/v1/files/{id}/content", file_routes.contents, "The contents of a file."),
        kind="application/jsonl",
    ),
    Route("GET", "/v1/files/{id}", file_routes.file, "One file.", response=FileObject),
    Route(
        *("DELETE", "/v1/files/{id}", file_routes.delete, "Remove a file."),
        response=DeletedFile,
    ),
    Route(
        *("POST", "/v1/batches", batch_routes.create, "Answer the requests of a file."),
        *(BatchRequest, Batch),
    ),
    Route(
        *("GET", "/v1/batches", batch_routes.batches, "The batches of this key."),
        response=BatchList,
        query=_PAGE,
    ),
    Route(
        *("POST", "/v1/batches/{id}/cancel", batch_routes.cancel, "End a batch."),
        response=Batch,
    ),
    Route("GET", "/v1/batches/{id}", batch_routes.batch, "One batch.", response=Batch),
    Route(
        *("DELETE", "/v1/batches/{id}", batch_routes.delete, "Forget a batch that has ended."),
        response=DeletedBatch,
    ),
)

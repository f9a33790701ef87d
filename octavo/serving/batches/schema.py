"""The requests and the responses of /v1/files and /v1/batches."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct, field

from octavo.serving.schema.rules import FieldRules

MAX_METADATA = 16
Id = Annotated[str, Meta(min_length=1, max_length=64)]
Status = Literal[
    "validating",
    "in_progress",
    "finalizing",
    "completed",
    "failed",
    "expired",
    "cancelling",
    "cancelled",
]
ENDED = ("completed", "failed", "expired", "cancelled")


class FileUpload(Struct, kw_only=True, forbid_unknown_fields=True):
    """The form that adds a file."""

    file: Annotated[str, Meta(extra_json_schema={"format": "binary"})]
    purpose: Literal["batch"]


class FileObject(Struct, kw_only=True):
    """A file as clients see it."""

    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    object: str = "file"
    status: str = "processed"
    status_details: None = None


class FileList(Struct, kw_only=True):
    """A page of files."""

    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class DeletedFile(Struct, kw_only=True):
    """The name of a file that is no more."""

    id: str
    object: str = "file"
    deleted: bool = True


class OutputExpiry(Struct, kw_only=True, forbid_unknown_fields=True):
    """The time for which the results of a batch are kept."""

    seconds: Annotated[int, Meta(ge=3600, le=2_592_000)]
    anchor: Literal["created_at"] = "created_at"


class BatchRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The request of a batch, whose requests are in a file."""

    rules: ClassVar[FieldRules] = FieldRules()
    input_file_id: Id
    endpoint: Annotated[str, Meta(min_length=1, max_length=128)]
    completion_window: Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,3}[mhd](?![\s\S])")] = "24h"
    metadata: (
        Annotated[
            dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
            Meta(max_length=MAX_METADATA),
        ]
        | None
    ) = None
    output_expires_after: OutputExpiry | None = None


class BatchError(Struct, kw_only=True):
    """An error in the file of requests."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchErrors(Struct, kw_only=True):
    """The errors in the file of requests, the first of many."""

    data: list[BatchError]
    object: str = "list"


class RequestCounts(Struct, kw_only=True):
    """The numbers of requests: of all, of those that were answered well, and with an error."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(Struct, kw_only=True):
    """A batch as clients see it."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: Status
    created_at: int
    expires_at: int
    errors: BatchErrors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = field(default_factory=RequestCounts)
    metadata: dict[str, str] | None = None
    object: str = "batch"


class BatchList(Struct, kw_only=True):
    """A page of batches."""

    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class DeletedBatch(Struct, kw_only=True):
    """The name of a batch that is no more."""

    id: str
    object: str = "batch"
    deleted: bool = True


class StoredFile(Struct, kw_only=True):
    """A file as the directory has it."""

    owner: str  # the name of the key
    file: FileObject


class StoredBatch(Struct, kw_only=True):
    """A batch as the directory has it."""

    owner: str
    batch: Batch
    output_seconds: int | None = None  # for which results are kept
    outcome: Literal["completed", "failed", "expired", "cancelled"] | None = (
        None  # once it is finalizing
    )

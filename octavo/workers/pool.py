"""The prompt workers: processes that render chat templates and tokenise prompts for the server.

Templates and texts are hostile input, so none of them is processed in the event loop. A worker has
limits of time and memory. One that exceeds a limit fails only the job that it was doing: it is
killed, and a new worker does the jobs behind it. Keys take turns, and jobs that may be slow (long
texts, templates of clients) have a worker of their own, so that others do not wait behind them. So
have, for a while, all jobs of a key with a job that has cost a worker. The shapes of structured
output have one as well, which starts with the first of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from octavo.grammar.checked import CheckedShape, ShapeJob
from octavo.transport.errors import ApiError, invalid, unavailable
from octavo.workers.answer_shape import AnswerJob
from octavo.workers.frames import pieces
from octavo.workers.jobs import (
    Answer,
    BodyJob,
    Conversation,
    Duty,
    Job,
    PreparedPrompt,
    PreparedPrompts,
    PromptJob,
    PromptJobs,
    ReadBody,
    Refused,
    default_param,
    with_texts,
)
from octavo.workers.process import (
    Result,
    SentJob,
    Worker,
    WorkerDiedError,
    WorkerLateError,
    WorkerLimits,
)

log = logging.getLogger(__name__)

MAX_DEATHS = 2  # a worker can be killed from outside, which is not the job's fault
HEAVY_BYTES = 1 << 16  # longer jobs may take more than some milliseconds
HEAVY_JOBS = 64  # so do more prompts
MAX_OVERRUNS = 3  # of the model's own template, after which the log says so
SUSPECT_SECONDS = 60.0  # for which a key's jobs are apart after one that has cost a worker
MAX_AHEAD = 8  # quick jobs that a worker is sent before it has answered the first of them


class _Lane:
    """The jobs of one kind that wait, and the workers that do them; keys take turns."""

    def __init__(
        self,
        num_workers: int,
        max_ahead: int,
        start: Callable[[Callable[[Worker], None]], Awaitable[Worker | None]],
        bury: Callable[[Worker], None],
        suspect: Callable[[str], None],
    ) -> None:
        self._num_workers = num_workers
        self._max_ahead = max_ahead
        self._start = start
        self._bury = bury
        self._suspect = suspect
        self._tasks: list[asyncio.Task[None]] = []  # one for each worker
        self._ready: list[Worker] = []
        self._waiting: dict[str, deque[SentJob]] = {}  # by owner; the first owner is next
        self._news = asyncio.Event()
        self.has_tried = asyncio.Event()  # to start a worker, well or not

    def open(self) -> None:
        """Start the workers, unless that has been done; replace one that a bug has ended."""
        self._tasks = [task for task in self._tasks if not task.done()]
        while len(self._tasks) < self._num_workers:
            self._tasks.append(asyncio.get_running_loop().create_task(self._keep_worker()))

    def put(self, job: SentJob) -> None:
        """Send a job to the worker with the fewest jobs, or let it wait until one has room."""
        best: Worker | None = None
        for worker in self._ready:
            if worker.ended.done():  # it will be replaced
                continue
            if best is None or len(worker.jobs) < len(best.jobs):
                best = worker
        if best is not None and len(best.jobs) < self._max_ahead and not self._waiting:
            best.send(job)
            return
        self._waiting.setdefault(job.owner, deque()).append(job)
        self._news.set()
        self.open()

    def forget(self, job: SentJob) -> None:
        """Remove a job that waits, if it does: its client has left, and it may be large."""
        jobs = self._waiting.get(job.owner, deque())
        if job in jobs:
            jobs.remove(job)
            if not jobs:
                del self._waiting[job.owner]

    def next_job(self) -> SentJob | None:
        """Return a job that waits; its owner's next one has its turn after those of the others."""
        while self._waiting:
            owner, jobs = next(iter(self._waiting.items()))
            del self._waiting[owner]
            job = jobs.popleft()
            if jobs:
                self._waiting[owner] = jobs
            if not job.answer.done():  # else the client has left
                return job
        return None

    async def close(self) -> None:
        """End the tasks, and cancel all jobs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        sent = [job for worker in self._ready for job in worker.jobs]
        for job in [*sent, *(job for jobs in self._waiting.values() for job in jobs)]:
            job.answer.cancel()
        self._waiting.clear()

    def _feed(self, worker: Worker) -> None:
        """Send waiting jobs to a worker that has room."""
        while self._waiting and len(worker.jobs) < self._max_ahead and not worker.ended.done():
            job = self.next_job()
            if job is not None:
                worker.send(job)

    async def _keep_worker(self) -> None:
        """Keep one worker: start it, and put another in its place when it ends."""
        while True:
            worker = await self._start(self._feed)
            self.has_tried.set()
            if worker is None:
                if self._waiting and not self._ready:
                    self._refuse_all()
                else:  # it is tried again when it is needed
                    self._news.clear()
                    await self._news.wait()
                continue
            self._ready.append(worker)
            self._feed(worker)
            reason = await worker.ended
            self._ready.remove(worker)
            self._bury(worker)
            self._settle(list(worker.jobs), reason)

    def _refuse_all(self) -> None:
        """Fail all jobs that wait for a worker: none can be started."""
        message = "no prompt worker can be started; the server's log has the reason"
        while (job := self.next_job()) is not None:
            job.end(unavailable(message, "prompt_worker"))

    def _settle(self, jobs: list[SentJob], reason: Exception) -> None:
        """Fail the job that a worker was doing when it ended, or let it wait again with the rest.

        Jobs that had only been sent ahead are not blamed.
        """
        if jobs:
            job = jobs[0]
            job.num_deaths += 1
            self._suspect(job.owner)
            if not isinstance(reason, WorkerDiedError) or job.num_deaths == MAX_DEATHS:
                job.end(reason)
            elif not job.answer.done():
                log.warning("a prompt worker died; its prompt is tried once more")
        for job in reversed(jobs):
            job.worker = None
            if not job.answer.done():
                self._waiting.setdefault(job.owner, deque()).appendleft(job)
        for worker in self._ready:
            self._feed(worker)


class PromptPool:
    """Lanes of jobs, each with its workers: quick, heavy, those of suspected keys, shapes."""

    def __init__(
        self,
        limits: WorkerLimits,
        path: str,
        count_killed: Callable[[], None],
        workers: Sequence[Worker] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._path = path  # a model's directory or GGUF file, with the tokenizer
        self._launched = list(workers)  # started before the pool, and not in use yet
        self._count_killed = count_killed
        ends = self._bury, self._suspect
        self._quick = _Lane(limits.prompt_workers, MAX_AHEAD, self._start_quick, *ends)
        self._heavy = _Lane(1, 1, self._start_heavy, *ends)
        self._suspected = _Lane(1, 1, self._start_heavy, *ends)
        self._shapes = _Lane(1, 1, self._start_shapes, *ends)
        self._suspected_shapes = _Lane(1, 1, self._start_shapes, *ends)
        self._suspects: dict[str, float] = {}  # by key, until when
        self._num_waiting = 0
        self._num_overruns = 0  # of the limits, by the model's own template
        self._workers: set[Worker] = set()
        self._ended: list[Worker] = []  # killed, and not yet reaped

    async def start(self) -> None:
        """Start the workers, wait until one is ready, and have it compile the chat template."""
        self._quick.open()
        await self._quick.has_tried.wait()
        nothing = [{"role": "user", "content": ""}]
        template = self._limits.chat_template
        with contextlib.suppress(ApiError):  # a model may have no template, or reject this
            await self.prepare(
                PromptJob(conversation=Conversation(messages=nothing, template=template))
            )

    async def prepare(self, job: PromptJob, owner: str = "") -> PreparedPrompt:
        """Return the prompt's text and tokens; raise ApiError if they cannot be had."""
        (prepared,) = await self.prepare_all([job], owner)
        if isinstance(prepared, Refused):
            raise refusal(prepared)
        return prepared

    async def prepare_all(
        self, jobs: list[PromptJob], owner: str = ""
    ) -> list[PreparedPrompt | Refused]:
        """Return prompts in order, up to the first that is refused; raise ApiError for no answer.

        `owner` is the key of the client. If this call is cancelled, its job ends soon.
        """
        limits = self._limits
        conversations = [job.conversation for job in jobs if job.conversation is not None]
        is_heavy, seconds = len(jobs) > HEAVY_JOBS, limits.tokenize_seconds
        for each in conversations:
            seconds = limits.template_seconds
            if each.documents or each.template not in (None, limits.chat_template):
                is_heavy = True  # the template is a client's own, or has much to do
        param = default_param(jobs[0]) if jobs else "prompt"
        what = "rendering the chat template" if conversations else "tokenising the prompt"
        lane = self._heavy if is_heavy else None
        answer = await self._answer(PromptJobs(jobs), owner, seconds, lane, param, what)
        assert isinstance(answer, PreparedPrompts), "a worker answers what it is asked"
        return with_texts(answer.prompts, jobs)

    async def read_body(self, job: BodyJob, owner: str = "") -> ReadBody:
        """Return a request with its prompts; raise ApiError for what is wrong with it."""
        seconds = max(self._limits.tokenize_seconds, self._limits.template_seconds)
        what = "reading the body and preparing its prompts"
        answer = await self._answer(job, owner, seconds, self._heavy, None, what)
        assert isinstance(answer, ReadBody), "a worker answers what it is asked"
        return answer

    async def check_shape(self, job: ShapeJob | AnswerJob, owner: str = "") -> CheckedShape:
        """Return a shape's grammar, or what is wrong; raise ApiError if it takes too much."""
        param, what = "structured_outputs", "compiling the shape"
        if isinstance(job, AnswerJob) and job.shape is None:
            param = job.field
        seconds = self._limits.shape_seconds
        answer = await self._answer(job, owner, seconds, self._shapes, param, what)
        assert isinstance(answer, CheckedShape), "a worker answers what it is asked"
        return answer

    async def _answer(
        self,
        job: Job,
        owner: str,
        seconds: float,
        lane: _Lane | None,  # None: by the size of the job
        param: str | None,
        what: str,
    ) -> Answer:
        """Return a worker's answer; raise ApiError, about `param`, where there is none."""
        limits = self._limits
        try:
            frame = pieces(job)
        except OverflowError:  # JSON has such numbers, msgpack does not
            message = "a number has more than 64 bits; send it as a string"
            raise invalid(message, param) from None
        if self._num_waiting >= limits.max_waiting_requests:
            message = f"{limits.max_waiting_requests} prompts wait for a prompt worker, the most"
            raise unavailable(f"{message} allowed; try again", "preparation_full", 1)
        if self._suspects.get(owner, 0.0) > self._clock():
            lane = self._suspected_shapes if lane is self._shapes else self._suspected
        if lane is None:
            lane = self._heavy if sum(map(len, frame)) > HEAVY_BYTES else self._quick
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        sent = SentJob(owner, frame, seconds, answer)
        self._num_waiting += 1
        try:
            lane.put(sent)
            result = await answer
        except asyncio.CancelledError:
            if sent.worker is not None:
                sent.worker.limit(sent)
            lane.forget(sent)
            raise
        finally:
            self._num_waiting -= 1
        if isinstance(result, WorkerLateError | WorkerDiedError):
            self._note_overrun(job)
        if isinstance(result, WorkerLateError):
            raise invalid(f"{what} took more than {seconds:g} s, which is the limit", param)
        if isinstance(result, WorkerDiedError):
            message = f"the prompt worker died {MAX_DEATHS} times while {what}"
            raise invalid(f"{message}; make it smaller", param)
        if isinstance(result, Exception):
            raise result
        if isinstance(result, Refused):
            raise refusal(result, param)
        return result

    def _note_overrun(self, job: Job) -> None:
        """Report the model's own chat template once if it exceeds the limits repeatedly."""
        if not isinstance(job, PromptJobs) or all(each.conversation is None for each in job.jobs):
            return
        own = (None, self._limits.chat_template)
        if all(each.conversation and each.conversation.template in own for each in job.jobs):
            self._num_overruns += 1
            if self._num_overruns == MAX_OVERRUNS:
                log.error(
                    "the chat template has exceeded the limits of a prompt worker %d times (%g s, "
                    "%d MiB): such conversations are refused; if they are harmless, the template "
                    "is not: start the server with another --chat-template",
                    MAX_OVERRUNS,
                    self._limits.template_seconds,
                    self._limits.prompt_worker_bytes >> 20,
                )

    async def close(self) -> None:
        """Kill the workers; jobs that are not done are cancelled."""
        await self._quick.close()
        await self._heavy.close()
        await self._suspected.close()
        await self._shapes.close()
        await self._suspected_shapes.close()
        for worker in [*self._workers, *self._launched]:
            self._kill(worker)
        self._launched.clear()
        for worker in self._ended:
            worker.wait()
        self._ended.clear()

    async def _start_quick(self, on_answer: Callable[[Worker], None]) -> Worker | None:
        return await self._start_worker(on_answer, "prompts")

    async def _start_heavy(self, on_answer: Callable[[Worker], None]) -> Worker | None:
        return await self._start_worker(on_answer, "bodies")

    async def _start_shapes(self, on_answer: Callable[[Worker], None]) -> Worker | None:
        return await self._start_worker(on_answer, "shapes")

    async def _start_worker(self, on_answer: Callable[[Worker], None], duty: Duty) -> Worker | None:
        """Return a new worker that is ready; log an error and return None if it fails."""
        self._ended = [worker for worker in self._ended if not worker.has_ended()]
        try:
            if self._launched and duty == "prompts":
                worker = self._launched.pop()
            else:
                worker = Worker.launch(self._limits, self._path, duty)
        except OSError as error:
            log.error("a prompt worker cannot be started: %s", error)
            return None
        try:
            await worker.become_ready(on_answer)
        except BaseException as error:
            self._kill(worker)
            if not isinstance(error, WorkerDiedError):
                raise
            log.error("a prompt worker did not start: %s", error)
            return None
        self._workers.add(worker)
        return worker

    def _suspect(self, owner: str) -> None:
        """Keep a key's next jobs from those of others; without keys all clients are alike."""
        if owner:
            self._suspects[owner] = self._clock() + SUSPECT_SECONDS

    def _bury(self, worker: Worker) -> None:
        """Count and kill a worker from which no further answer will come."""
        self._count_killed()
        self._kill(worker)

    def _kill(self, worker: Worker) -> None:
        """End a worker without waiting: releasing its memory can take a while."""
        self._workers.discard(worker)
        self._ended.append(worker)
        worker.kill()


def refusal(refused: Refused, param: str | None = None) -> ApiError:
    """Return the error of what a worker refuses, with the field at fault."""
    return ApiError(
        refused.status, refused.message, param=refused.param or param, code=refused.code
    )

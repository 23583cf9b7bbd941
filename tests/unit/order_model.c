/* Enumerates every execution of a small program of CUDA calls.
 *
 * A call takes up to four steps: the host call itself (for a synchronisation: its return), start and end of
 * what it puts on the stream, and the return of a copy the host waits for. Records and waits are done in one
 * step, `end`. A step can be taken when all that it needs has been; from the empty state every step that can
 * be taken is, in every order. What was always over when something began is ordered, by observation and not
 * by any calculation with clocks.
 *
 * Fixed is what the observer saw: the order of calls on one stream, which record a wait meant, and what was
 * on the blocking streams when the legacy stream was used. Host calls of different threads otherwise slip
 * past each other.
 *
 * Where CUDA's text leaves open whether something orders, the device of this model takes the liberty: a
 * programmatic launch begins as soon as the operation before it in the stream has begun, whatever waits or
 * legacy work lie between; a launch completion event is as if never recorded; staging a pageable copy and
 * freeing memory synchronise nothing. */
#include "tests/unit/order_model.h"

#include <string.h>

enum step { HOST, START, END, RETURN, STEPS };
#define BIT(call, step) (UINT64_C(1) << ((call)*STEPS + (step)))
#define UNBOUND (-1)

struct machine {
  const struct model_program *program;
  uint64_t need[MODEL_CALLS *
                STEPS]; /* steps that come before; a step that does not exist has no bit in `exist` */
  uint64_t exist;
  int bound[MODEL_CALLS];  /* the call whose record a wait or event synchronisation means */
  int reborn[MODEL_CALLS]; /* how often the call's stream had been destroyed */
};

bool model_is_operation(enum model_kind kind) {
  return kind <= MODEL_COPY_RETURNS;
}

static bool is_launch_event(enum model_kind kind) {
  return kind == MODEL_LAUNCH_EVENT || kind == MODEL_LAUNCH_COMPLETION;
}

static const struct model_stream *stream_of(const struct machine *machine, int call) {
  return &machine->program->streams[machine->program->calls[call].stream];
}

/* Does the call put something on its stream? */
static bool is_item(const struct machine *machine, int call) {
  enum model_kind kind = machine->program->calls[call].kind;
  return model_is_operation(kind) || kind == MODEL_RECORD ||
         (kind == MODEL_WAIT && machine->bound[call] != UNBOUND);
}

static bool destroys(const struct machine *machine, int call) {
  return machine->program->calls[call].kind == MODEL_DESTROY && stream_of(machine, call)->handle > 2;
}

static int destroyed_before(const struct machine *machine, int stream, int call) {
  int destroyed = 0;
  for (int i = 0; i < call; i++)
    destroyed += machine->program->calls[i].stream == stream && destroys(machine, i);
  return destroyed;
}

static void bind_events(struct machine *machine) {
  for (int i = 0; i < machine->program->count; i++) {
    const struct model_call *call = &machine->program->calls[i];
    machine->bound[i] = UNBOUND;
    if (call->kind != MODEL_WAIT && call->kind != MODEL_SYNC_EVENT) continue;
    for (int j = i - 1; j >= 0; j--) {
      const struct model_call *record = &machine->program->calls[j];
      if (record->object != call->object) continue;
      if (record->kind != MODEL_RECORD && !is_launch_event(record->kind)) continue;
      if (record->kind != MODEL_LAUNCH_COMPLETION) machine->bound[i] = j;
      break;
    }
  }
}

/* The step at which the record that call i means is complete. */
static uint64_t recorded(const struct machine *machine, int call) {
  int record = machine->bound[call];
  if (record == UNBOUND) return 0;
  return BIT(record, machine->program->calls[record].kind == MODEL_RECORD ? END : START);
}

enum which { SAME_STREAM, BLOCKING, LEGACY, ALL };

static bool belongs(const struct machine *machine, int item, enum which which, int call) {
  const struct model_stream *stream = stream_of(machine, item);
  const struct model_call *asking = &machine->program->calls[call];
  const int own = machine->program->calls[item].stream;
  const bool exists = machine->reborn[item] == destroyed_before(machine, own, call);
  if (which == SAME_STREAM) return own == asking->stream && exists;
  if (stream->context != asking->context) return false;
  return which == ALL || (exists && (which == LEGACY ? stream->legacy : stream->blocking));
}

/* The ends of all items of some streams that were there at the time of call i. */
static uint64_t ends_before(const struct machine *machine, int call, enum which which) {
  uint64_t ends = 0;
  for (int i = 0; i < call; i++)
    if (is_item(machine, i) && belongs(machine, i, which, call)) ends |= BIT(i, END);
  return ends;
}

static uint64_t item_needs(const struct machine *machine, int call) {
  uint64_t need = BIT(call, HOST) | ends_before(machine, call, SAME_STREAM);
  if (stream_of(machine, call)->legacy) need |= ends_before(machine, call, BLOCKING);
  if (stream_of(machine, call)->blocking) need |= ends_before(machine, call, LEGACY);
  return need;
}

static uint64_t start_needs(const struct machine *machine, int call) {
  const struct model_call *calls = machine->program->calls;
  uint64_t need = item_needs(machine, call);
  if (calls[call].kind == MODEL_PROGRAMMATIC) {
    need = BIT(call, HOST);
    for (int i = call - 1; i >= 0; i--)
      if (belongs(machine, i, SAME_STREAM, call) && model_is_operation(calls[i].kind))
        return need | BIT(i, START);
  }
  for (int i = 0; calls[call].kind == MODEL_GRAPH && i < call; i++)
    if (calls[i].kind == MODEL_GRAPH && calls[i].object == calls[call].object) need |= BIT(i, END);
  return need;
}

/* The call before this one in its thread has returned, and what it synchronises with is done. */
static uint64_t host_needs(const struct machine *machine, int call) {
  const struct model_call *calls = machine->program->calls;
  uint64_t need = 0;
  for (int i = call - 1; i >= 0 && !need; i--)
    if (calls[i].thread == calls[call].thread)
      need = BIT(i, calls[i].kind == MODEL_COPY_WAITS ? RETURN : HOST);
  switch (calls[call].kind) {
  case MODEL_SYNC_STREAM:
    need |= ends_before(machine, call, SAME_STREAM);
    if (stream_of(machine, call)->legacy) need |= ends_before(machine, call, BLOCKING);
    break;
  case MODEL_SYNC_EVENT:
    need |= recorded(machine, call);
    break;
  case MODEL_SYNC_CONTEXT:
    need |= ends_before(machine, call, ALL);
    break;
  default:
    break;
  }
  return need;
}

static void add_step(struct machine *machine, int call, enum step step, uint64_t need) {
  machine->exist |= BIT(call, step);
  machine->need[call * STEPS + step] = need;
}

static void build(struct machine *machine, const struct model_program *program) {
  memset(machine, 0, sizeof *machine);
  machine->program = program;
  bind_events(machine);
  for (int i = 0; i < program->count; i++)
    machine->reborn[i] = destroyed_before(machine, program->calls[i].stream, i);
  for (int i = 0; i < program->count; i++) {
    enum model_kind kind = program->calls[i].kind;
    add_step(machine, i, HOST, host_needs(machine, i));
    if (model_is_operation(kind)) {
      add_step(machine, i, START, start_needs(machine, i));
      add_step(machine, i, END, BIT(i, START));
    } else if (is_item(machine, i)) {
      add_step(machine, i, END, item_needs(machine, i) | recorded(machine, i));
    }
    if (kind == MODEL_COPY_WAITS) add_step(machine, i, RETURN, BIT(i, END));
  }
}

/* ---- all executions ---- */

#define ROOM (1 << 17)
static uint64_t seen[2 * ROOM]; /* state + 1: the state of all ones does not occur */
static uint64_t queue[ROOM];

static bool visit(uint64_t state, long *count) {
  uint64_t at = (state * UINT64_C(0x9E3779B97F4A7C15)) >> 46;
  while (seen[at] && seen[at] != state + 1)
    at = (at + 1) % (2 * ROOM);
  if (seen[at]) return true;
  if (*count == ROOM) return false;
  seen[at] = state + 1;
  queue[(*count)++] = state;
  return true;
}

/* The step is about to be taken in this state: whatever operation has not ended is not ordered before it. */
static void observe(const struct machine *machine, struct model_answer *answer, uint64_t state, int call,
                    enum step step) {
  const bool returns = step == (machine->program->calls[call].kind == MODEL_COPY_WAITS ? RETURN : HOST);
  for (int i = 0; i < call; i++) {
    if (!(machine->exist & BIT(i, START)) || (state & BIT(i, END))) continue;
    if (step == START) answer->ordered[i][call] = false;
    if (returns) answer->known[i][call] = false;
  }
}

bool model_solve(const struct model_program *program, struct model_answer *answer) {
  struct machine machine;
  build(&machine, program);
  memset(answer, 1, sizeof *answer);
  memset(seen, 0, sizeof seen);
  answer->states = 0;
  visit(0, &answer->states);
  for (long at = 0; at < answer->states; at++) {
    const uint64_t state = queue[at];
    for (int bit = 0; bit < program->count * STEPS; bit++) {
      if (!(machine.exist & ~state & (UINT64_C(1) << bit)) || (machine.need[bit] & ~state)) continue;
      observe(&machine, answer, state, bit / STEPS, (enum step)(bit % STEPS));
      if (!visit(state | UINT64_C(1) << bit, &answer->states)) return false;
    }
  }
  return true;
}

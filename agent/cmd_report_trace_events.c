/* The trace events of one report: its channels one by one, each lifetime on the track of its slot, on that of
 * its buffer, and as an asynchronous slice with phases; then counters over all of them. */
#include <stdlib.h>
#include <string.h>

#include "agent/cmd_report_text.h"
#include "agent/cmd_report_trace.h"

/* Slots drawn of a channel; deeper pools save nothing. */
#define MOST_PLACES 1024
/* A file can say anything; the sum over all that fit in one stays a number. */
#define MOST_BYTES ((uint64_t)1 << 41)

/* ---- events ---- */

int64_t rp__moment(int64_t a, int64_t b) {
  int64_t sum;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return a < 0 ? INT64_MIN : INT64_MAX;
}

void rp__trace_put(struct rp__trace *trace, int64_t at_ns, json_t *json) {
  if (json && trace->count == trace->capacity) {
    size_t capacity = trace->capacity ? 2 * trace->capacity : 256;
    struct rp__trace_event *grown = realloc(trace->events, capacity * sizeof *grown);
    if (grown) {
      trace->events = grown;
      trace->capacity = capacity;
    }
  }
  if (!json || trace->count == trace->capacity) {
    json_decref(json);
    trace->failed = true;
    return;
  }
  int64_t zero = trace->zero_ns == INT64_MIN ? INT64_MAX : -trace->zero_ns;
  int64_t at = rp__moment(rp__moment(at_ns, trace->offset_ns), zero);
  trace->events[trace->count] =
      (struct rp__trace_event){.at_ns = at > 0 ? at : 0, .order = trace->count, .json = json};
  trace->count++;
}

void rp__trace_clear(struct rp__trace *trace) {
  for (size_t i = 0; i < trace->count; i++)
    json_decref(trace->events[i].json);
  free(trace->events);
  trace->events = NULL;
  trace->count = trace->capacity = 0;
}

static int by_time(const void *a_pointer, const void *b_pointer) {
  const struct rp__trace_event *a = a_pointer, *b = b_pointer;
  if (a->at_ns != b->at_ns) return a->at_ns < b->at_ns ? -1 : 1;
  return a->order < b->order ? -1 : 1;
}

/* ---- lifetimes ---- */

/* A lifetime with moments that do not run backwards. */
struct life {
  const json_t *json, *channel;
  int64_t posted_ns, first_ns, last_ns, released_ns;
  uint64_t post_sequence, last_sequence, bytes;
  bool used, gradient;
  size_t channel_index;
};

static int64_t moment_of(const json_t *life, const char *key, int64_t least) {
  int64_t value = (int64_t)rp__count_of(life, key);
  return value > least ? value : least;
}

static void take_life(struct life *out, const json_t *channel, size_t channel_index, const json_t *json) {
  *out = (struct life){.json = json, .channel = channel, .channel_index = channel_index};
  out->posted_ns = moment_of(json, "posted_monotonic_ns", 0);
  out->used = rp__count_of(json, "first_access_monotonic_ns") > 0;
  out->first_ns = moment_of(json, "first_access_monotonic_ns", out->posted_ns);
  /* Where accesses were not seen, the answering send tells how long it was in use. */
  bool answered = !out->used && strcmp(rp__text_of(json, "release_evidence", ""), "answering_send") == 0;
  out->last_ns =
      moment_of(json, answered ? "released_monotonic_ns" : "last_access_monotonic_ns", out->first_ns);
  out->released_ns = moment_of(json, "released_monotonic_ns", out->last_ns);
  out->post_sequence = rp__count_of(json, "posted_sequence");
  out->last_sequence = rp__count_of(json, answered ? "released_sequence" : "last_access_sequence");
  if (out->last_sequence < out->post_sequence) out->last_sequence = out->post_sequence;
  out->bytes = rp__count_of(channel, "buffer_bytes");
  if (out->bytes > MOST_BYTES) out->bytes = MOST_BYTES;
  out->gradient = strcmp(rp__text_of(channel, "direction", ""), "gradient") == 0;
}

size_t rp__trace_lifetimes(const json_t *report) {
  size_t c, i, count = 0;
  json_t *channel, *life;
  json_array_foreach(json_object_get(report, "channels"), c, channel)
      json_array_foreach(json_object_get(channel, "lifetimes"), i, life) count +=
      rp__count_of(life, "posted_monotonic_ns") > 0;
  return count;
}

static int by_post(const void *a_pointer, const void *b_pointer) {
  const struct life *a = a_pointer, *b = b_pointer;
  if (a->posted_ns != b->posted_ns) return a->posted_ns < b->posted_ns ? -1 : 1;
  if (a->post_sequence != b->post_sequence) return a->post_sequence < b->post_sequence ? -1 : 1;
  return a->json < b->json ? -1 : a->json > b->json;
}

static struct life *collect(const json_t *report, size_t count) {
  struct life *lives = malloc((count + 1) * sizeof *lives);
  size_t c, i, used = 0;
  json_t *channel, *life;
  json_array_foreach(json_object_get(report, "channels"), c, channel) {
    json_array_foreach(json_object_get(channel, "lifetimes"), i, life) {
      if (lives && used < count && rp__count_of(life, "posted_monotonic_ns") > 0)
        take_life(&lives[used++], channel, c, life);
    }
  }
  if (lives) qsort(lives, used, sizeof *lives, by_post);
  return lives;
}

/* ---- slots ---- */

static char *slot_key(const json_t *device, const char *address, char *out, size_t size) {
  char ordinal[24];
  snprintf(out, size, "%s/%.40s", rp__format_integer(device, "device", ordinal, sizeof ordinal), address);
  return out;
}

/* Adds those of one list; a later one takes the place of an earlier one. */
static void add_bindings(json_t *found, const json_t *device, const json_t *class, const json_t *list) {
  json_t *binding;
  size_t b;
  char key[80];
  json_array_foreach(list, b, binding) {
    slot_key(device, rp__text_of(binding, "address", ""), key, sizeof key);
    json_t *slot = json_pack("{s:O?, s:O?}", "slot", json_object_get(binding, "slot"), "class",
                             json_object_get(class, "class"));
    (void)json_object_set_new(found, key, slot);
  }
}

/* Slots by device and address: those that buffers had before they were freed, then those they have. */
static json_t *bindings_of(const json_t *report) {
  static const char *const lists[] = {"last_bindings", "bindings"};
  const json_t *enforcement = json_object_get(report, "enforcement");
  json_t *found = json_object(), *device, *class;
  size_t d, c;
  if (strcmp(rp__text_of(enforcement, "mode", ""), "enforce") != 0) return found;
  for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
    json_array_foreach(json_object_get(enforcement, "devices"), d, device)
        json_array_foreach(json_object_get(device, "classes"), c, class)
            add_bindings(found, device, class, json_object_get(class, lists[i]));
  }
  return found;
}

/* ---- tracks ---- */

/* A thread of the trace. Slices on one must not overlap; where two do, which on a slot is what must never
 * happen, the later one goes to a track of its own below. */
struct track {
  json_int_t tid;
  int64_t end_ns;
  size_t below; /* index + 1 */
};

struct tracks {
  struct rp__trace *trace;
  json_t *by_name;
  struct track *list;
  size_t count;
};

static size_t add_track(struct tracks *tracks, const char *name) {
  struct track *grown = realloc(tracks->list, (tracks->count + 1) * sizeof *grown);
  if (!grown) {
    tracks->trace->failed = true;
    return SIZE_MAX;
  }
  tracks->list = grown;
  struct track *track = &grown[tracks->count];
  *track = (struct track){.tid = tracks->trace->next_tid++, .end_ns = INT64_MIN};
  rp__trace_put(tracks->trace, INT64_MIN,
                json_pack("{s:s, s:s, s:I, s:{s:o}}", "ph", "M", "name", "thread_name", "tid", track->tid,
                          "args", "name", rp__json_text(name)));
  rp__trace_put(tracks->trace, INT64_MIN,
                json_pack("{s:s, s:s, s:I, s:{s:I}}", "ph", "M", "name", "thread_sort_index", "tid",
                          track->tid, "args", "sort_index", track->tid));
  return tracks->count++;
}

/* The track of this name with room from `begin_ns` on, which is taken up to `end_ns`. */
static json_int_t take_track(struct tracks *tracks, const char *name, int64_t begin_ns, int64_t end_ns) {
  json_t *key = rp__json_text(name), *known = json_object_get(tracks->by_name, json_string_value(key));
  size_t at = known ? (size_t)json_integer_value(known) : add_track(tracks, name);
  if (!known && at != SIZE_MAX)
    (void)json_object_set_new(tracks->by_name, json_string_value(key), json_integer((json_int_t)at));
  json_decref(key);
  while (at != SIZE_MAX && tracks->list[at].end_ns > begin_ns) {
    if (!tracks->list[at].below) {
      size_t below = add_track(tracks, name);
      tracks->list[at].below = below == SIZE_MAX ? 0 : below + 1;
    }
    at = tracks->list[at].below ? tracks->list[at].below - 1 : SIZE_MAX;
  }
  if (at == SIZE_MAX) return 0;
  tracks->list[at].end_ns = end_ns;
  return tracks->list[at].tid;
}

/* "activation from rank 0, stage 1, 1.0 MiB" */
static const char *channel_name(const json_t *channel, char *out, size_t size) {
  char peer[24], stage[24], bytes[32];
  snprintf(out, size, "%.20s from rank %s, stage %s, %s", rp__text_of(channel, "direction", "?"),
           rp__format_integer(channel, "peer", peer, sizeof peer),
           rp__format_integer(channel, "stage_ordinal", stage, sizeof stage),
           rp__format_bytes(rp__count_of(channel, "buffer_bytes"), bytes, sizeof bytes));
  return out;
}

/* ---- one lifetime ---- */

static json_t *arguments_of(const struct life *life) {
  static const char *const members[] = {"step",
                                        "microbatch",
                                        "address",
                                        "accesses",
                                        "label",
                                        "last_access_kind",
                                        "last_access_kernel",
                                        "release_evidence"};
  json_t *out = json_pack("{s:I}", "bytes", (json_int_t)life->bytes);
  for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
    json_t *value = json_object_get(life->json, members[i]);
    if (value && !json_is_object(value) && !json_is_array(value))
      (void)json_object_set(out, members[i], value);
  }
  (void)json_object_set(out, "direction", json_object_get(life->channel, "direction"));
  (void)json_object_set(out, "peer", json_object_get(life->channel, "peer"));
  return out;
}

static json_t *life_name(const struct life *life) {
  char number[24], name[64];
  snprintf(name, sizeof name, "%.20s %s", rp__text_of(life->channel, "direction", "?"),
           rp__format_integer(life->json, "microbatch", number, sizeof number));
  return rp__json_text(name);
}

static void put_async(struct rp__trace *trace, const char *phase, json_int_t id, json_t *name, int64_t at_ns,
                      json_t *arguments) {
  json_t *event = json_pack("{s:s, s:s, s:o, s:I, s:I}", "ph", phase, "cat", "lifetime", "name", name, "id",
                            id, "tid", (json_int_t)0);
  if (arguments && json_object_set_new(event, "args", arguments) != 0) trace->failed = true;
  rp__trace_put(trace, at_ns, event);
}

static void put_phase(struct rp__trace *trace, json_int_t id, const char *name, int64_t begin_ns,
                      int64_t end_ns) {
  put_async(trace, "b", id, json_string(name), begin_ns, NULL);
  put_async(trace, "e", id, json_string(name), end_ns, NULL);
}

/* Posted, used, and kept until the release is known. */
static void put_lifetime(struct rp__trace *trace, const struct life *life) {
  json_int_t id = trace->next_id++;
  put_async(trace, "b", id, life_name(life), life->posted_ns, arguments_of(life));
  put_phase(trace, id, "waiting", life->posted_ns, life->first_ns);
  if (life->used) put_phase(trace, id, "in use", life->first_ns, life->last_ns);
  if (life->released_ns > life->last_ns) put_phase(trace, id, "kept", life->last_ns, life->released_ns);
  put_async(trace, "e", id, life_name(life), life->released_ns, NULL);
}

static void put_slice(struct tracks *tracks, const char *category, const char *track,
                      const struct life *life) {
  json_int_t tid = take_track(tracks, track, life->posted_ns, life->last_ns);
  rp__trace_put(tracks->trace, life->posted_ns,
                json_pack("{s:s, s:s, s:o, s:I, s:f, s:o}", "ph", "X", "cat", category, "name",
                          life_name(life), "tid", tid, "dur", (double)(life->last_ns - life->posted_ns) / 1e3,
                          "args", arguments_of(life)));
}

static void put_transfer(struct tracks *tracks, const struct life *life) {
  char name[128], track[160];
  snprintf(track, sizeof track, "receives: %s", channel_name(life->channel, name, sizeof name));
  json_int_t tid = take_track(tracks, track, life->posted_ns, life->posted_ns);
  rp__trace_put(tracks->trace, life->posted_ns,
                json_pack("{s:s, s:s, s:s, s:o, s:I, s:{s:I, s:I, s:O?}}", "ph", "i", "s", "t", "cat",
                          "transfer", "name", life_name(life), "tid", tid, "args", "bytes",
                          (json_int_t)life->bytes, "sequence", (json_int_t)life->post_sequence, "stream",
                          json_object_get(life->json, "post_stream")));
}

/* A slot of the pool where its memory is shared. */
static void put_on_slot(struct tracks *tracks, const json_t *bindings, const struct life *life) {
  char key[80], track[200], class[24], slot[24];
  const char *address = rp__text_of(life->json, "address", "");
  const json_t *bound = json_object_get(bindings, slot_key(life->channel, address, key, sizeof key));
  if (!bound) return;
  snprintf(track, sizeof track, "class %s, slot %s", rp__format_integer(bound, "class", class, sizeof class),
           rp__format_integer(bound, "slot", slot, sizeof slot));
  put_slice(tracks, "slot", track, life);
}

/* Places that a pool would need for a channel, taken as a pool takes them: the one that is free for longest.
 */
struct places {
  size_t count;
  int64_t ends_ns[MOST_PLACES];
};

static size_t take_place(struct places *places, const struct life *life) {
  size_t best = SIZE_MAX;
  for (size_t i = 0; i < places->count; i++)
    if (places->ends_ns[i] <= life->posted_ns &&
        (best == SIZE_MAX || places->ends_ns[i] < places->ends_ns[best]))
      best = i;
  if (best == SIZE_MAX && places->count < MOST_PLACES) best = places->count++;
  if (best != SIZE_MAX) places->ends_ns[best] = life->last_ns;
  return best;
}

/* Where memory is not shared. `all`: of each channel, made when it is needed. */
static void put_on_place(struct tracks *tracks, struct places **all, const struct life *life) {
  char name[128], track[200];
  struct places **places = &all[life->channel_index];
  if (!*places) *places = calloc(1, sizeof **places);
  size_t place = *places ? take_place(*places, life) : SIZE_MAX;
  if (place == SIZE_MAX) return;
  snprintf(track, sizeof track, "place %zu of a pool: %s", place,
           channel_name(life->channel, name, sizeof name));
  put_slice(tracks, "slot", track, life);
}

static void put_on_buffer(struct tracks *tracks, const struct life *life) {
  char track[120], ordinal[24];
  snprintf(track, sizeof track, "buffer %.40s of device %s", rp__text_of(life->json, "address", "?"),
           rp__format_integer(life->channel, "device", ordinal, sizeof ordinal));
  put_slice(tracks, "buffer", track, life);
}

/* ---- counters ---- */

/* A buffer comes into use, or is no longer in use. */
struct change {
  int64_t at_ns;
  uint64_t sequence;
  int by;
  const struct life *life;
};

static int by_change(const void *a_pointer, const void *b_pointer) {
  const struct change *a = a_pointer, *b = b_pointer;
  if (a->at_ns != b->at_ns) return a->at_ns < b->at_ns ? -1 : 1;
  if (a->sequence != b->sequence) return a->sequence < b->sequence ? -1 : 1;
  if (a->by != b->by) return a->by > b->by ? -1 : 1; /* what begins and ends at once was there */
  return a->life < b->life ? -1 : a->life > b->life;
}

static void put_counters(struct rp__trace *trace, const struct change *change, json_int_t in_flight,
                         const uint64_t *bytes) {
  char channel[128], name[160];
  snprintf(name, sizeof name, "in flight: %s", channel_name(change->life->channel, channel, sizeof channel));
  rp__trace_put(trace, change->at_ns,
                json_pack("{s:s, s:o, s:I, s:{s:I}}", "ph", "C", "name", rp__json_text(name), "tid",
                          (json_int_t)0, "args", "buffers", in_flight));
  rp__trace_put(trace, change->at_ns,
                json_pack("{s:s, s:s, s:I, s:{s:I, s:I}}", "ph", "C", "name", "bytes in use", "tid",
                          (json_int_t)0, "args", "activation", (json_int_t)bytes[0], "gradient",
                          (json_int_t)bytes[1]));
}

static void count_lives(struct rp__trace *trace, const struct life *lives, size_t count, size_t channels) {
  struct change *changes = malloc((2 * count + 1) * sizeof *changes);
  json_int_t *in_flight = calloc(channels + 1, sizeof *in_flight);
  uint64_t bytes[2] = {0, 0};
  for (size_t i = 0; changes && i < count; i++) {
    changes[2 * i] = (struct change){lives[i].posted_ns, lives[i].post_sequence, 1, &lives[i]};
    changes[2 * i + 1] = (struct change){lives[i].last_ns, lives[i].last_sequence, -1, &lives[i]};
  }
  if (changes) qsort(changes, 2 * count, sizeof *changes, by_change);
  trace->failed |= !changes || !in_flight;
  for (size_t i = 0; !trace->failed && i < 2 * count; i++) {
    const struct life *life = changes[i].life;
    in_flight[life->channel_index] += changes[i].by;
    bytes[life->gradient] += changes[i].by > 0 ? life->bytes : (uint64_t)0 - life->bytes; /* wraps back */
    put_counters(trace, &changes[i], in_flight[life->channel_index], bytes);
  }
  free(changes);
  free(in_flight);
}

/* ---- a report ---- */

static void put_lives(struct rp__trace *trace, const json_t *report, const struct life *lives, size_t count,
                      size_t channels) {
  struct tracks tracks = {.trace = trace, .by_name = json_object()};
  json_t *bindings = bindings_of(report);
  struct places **places = calloc(channels + 1, sizeof *places);
  char key[80];
  trace->failed |= !places;
  for (size_t i = 0; !trace->failed && i < count; i++)
    put_transfer(&tracks, &lives[i]);
  for (size_t i = 0; !trace->failed && i < count; i++) {
    const char *address = rp__text_of(lives[i].json, "address", "");
    if (json_object_get(bindings, slot_key(lives[i].channel, address, key, sizeof key)))
      put_on_slot(&tracks, bindings, &lives[i]);
    else
      put_on_place(&tracks, places, &lives[i]);
  }
  for (size_t i = 0; !trace->failed && i < count; i++) {
    put_on_buffer(&tracks, &lives[i]);
    put_lifetime(trace, &lives[i]);
  }
  for (size_t c = 0; places && c < channels; c++)
    free(places[c]);
  free(places);
  free(tracks.list);
  json_decref(tracks.by_name);
  json_decref(bindings);
}

size_t rp__trace_make(struct rp__trace *trace, const json_t *report, size_t most) {
  size_t count = rp__trace_lifetimes(report), channels = json_array_size(json_object_get(report, "channels"));
  size_t left_out = count > most ? count - most : 0;
  struct life *lives = collect(report, count);
  trace->failed |= !lives;
  if (!trace->failed) put_lives(trace, report, lives + left_out, count - left_out, channels);
  if (!trace->failed) count_lives(trace, lives + left_out, count - left_out, channels);
  if (!trace->failed) rp__trace_conflicts(trace, report);
  if (trace->count) qsort(trace->events, trace->count, sizeof *trace->events, by_time);
  free(lives);
  return left_out;
}

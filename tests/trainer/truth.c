// The trainer's own record of receives and accesses, written as one JSON object per line.
#include "truth.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device.h"

struct lifetime {
  struct rp_truth_receive receive;
  uint64_t posted_ns[2], first_ns[2], last_ns[2];
  uint64_t posted_sequence, last_sequence; /**< host order of posts and accesses */
  const char *last_kernel;
  int accesses;
};

/** All receives of one stage and direction over the whole run. */
struct channel {
  struct rp_truth_receive sample;
  json_t *depths, *receives; /**< per step */
  uint64_t *addresses;       /**< distinct ones */
  size_t address_count;
  struct channel *next;
};

struct rp_truth {
  FILE *file; /**< NULL: count only */
  const struct rp_trainer_options *options;
  int32_t microbatches;
  int rank;
  uint64_t sequence;
  struct lifetime *lifetimes; /**< of this step */
  size_t count, capacity;
  struct channel *channels; /**< in order of their first post */
};

struct rp_truth *rp_truth_create(const struct rp_trainer_options *options, int32_t microbatches, int rank) {
  struct rp_truth *truth = calloc(1, sizeof *truth);
  if (truth == NULL) rp_die("no memory");
  truth->options = options;
  truth->microbatches = microbatches;
  truth->rank = rank;
  if (options->truth_dir != NULL) {
    char path[4096];
    snprintf(path, sizeof path, "%s/rank-%d.jsonl", options->truth_dir, rank);
    truth->file = fopen(path, "w");
    if (truth->file == NULL) rp_die("cannot write '%s'", path);
  }
  return truth;
}

int rp_truth_post(struct rp_truth *truth, const struct rp_truth_receive *receive, uint64_t before_ns,
                  uint64_t after_ns) {
  if (truth->count == truth->capacity) {
    truth->capacity = truth->capacity == 0 ? 64 : 2 * truth->capacity;
    truth->lifetimes = realloc(truth->lifetimes, truth->capacity * sizeof *truth->lifetimes);
    if (truth->lifetimes == NULL) rp_die("no memory");
  }
  truth->lifetimes[truth->count] = (struct lifetime){
      .receive = *receive, .posted_ns = {before_ns, after_ns}, .posted_sequence = ++truth->sequence};
  return (int)truth->count++;
}

void rp_truth_access(struct rp_truth *truth, int lifetime, const char *kernel, uint64_t before_ns,
                     uint64_t after_ns) {
  if ((size_t)lifetime >= truth->count) return; // of a step that was written already
  struct lifetime *l = &truth->lifetimes[lifetime];
  l->last_ns[0] = before_ns;
  l->last_ns[1] = after_ns;
  if (l->accesses++ == 0) memcpy(l->first_ns, l->last_ns, sizeof l->first_ns);
  l->last_sequence = ++truth->sequence;
  l->last_kernel = kernel;
}

static bool same_channel(const struct rp_truth_receive *a, const struct rp_truth_receive *b) {
  return a->stage == b->stage && a->direction == b->direction;
}

static const char *direction_name(int32_t direction) {
  return direction == 0 ? "activation" : "gradient";
}

/** Writes one line and drops the reference. */
static void write_line(struct rp_truth *truth, json_t *line) {
  if (line == NULL || json_dumpf(line, truth->file, JSON_COMPACT) != 0 || fputc('\n', truth->file) == EOF)
    rp_die("cannot write the record of rank %d", truth->rank);
  json_decref(line);
}

static json_t *hexadecimal(uint64_t value) {
  char text[32];
  snprintf(text, sizeof text, "0x%" PRIx64, value);
  return json_string(text);
}

static void write_lifetime(struct rp_truth *truth, const struct lifetime *l, int32_t pass, bool evaluation) {
  write_line(truth,
             json_pack("{ss,si,sb,si,si,si,ss,so,sI,si,s[II],s[II],s[II],ss,si}", "type", "lifetime", "step",
                       pass, "evaluation", evaluation, "stage", l->receive.stage, "stage_ordinal",
                       l->receive.stage_ordinal, "microbatch", l->receive.microbatch, "direction",
                       direction_name(l->receive.direction), "address", hexadecimal(l->receive.address),
                       "bytes", (json_int_t)l->receive.bytes, "peer", l->receive.peer, "posted_ns",
                       (json_int_t)l->posted_ns[0], (json_int_t)l->posted_ns[1], "first_access_ns",
                       (json_int_t)l->first_ns[0], (json_int_t)l->first_ns[1], "last_access_ns",
                       (json_int_t)l->last_ns[0], (json_int_t)l->last_ns[1], "last_kernel",
                       l->last_kernel ? l->last_kernel : "", "accesses", l->accesses));
}

static struct channel *channel_of(struct rp_truth *truth, const struct rp_truth_receive *receive) {
  struct channel **link = &truth->channels;
  while (*link != NULL && !same_channel(&(*link)->sample, receive))
    link = &(*link)->next;
  if (*link == NULL) {
    *link = calloc(1, sizeof **link);
    if (*link == NULL) rp_die("no memory");
    (*link)->sample = *receive;
    (*link)->depths = json_array();
    (*link)->receives = json_array();
  }
  return *link;
}

static void note_address(struct channel *channel, uint64_t address) {
  for (size_t i = 0; i < channel->address_count; i++)
    if (channel->addresses[i] == address) return;
  channel->addresses = realloc(channel->addresses, (channel->address_count + 1) * sizeof *channel->addresses);
  if (channel->addresses == NULL) rp_die("no memory");
  channel->addresses[channel->address_count++] = address;
}

/** Most lifetimes of the channel that overlap: counted at each post, by looking at all the others. */
static int depth_of(const struct rp_truth *truth, const struct channel *channel) {
  int depth = 0;
  for (size_t i = 0; i < truth->count; i++) {
    const struct lifetime *posted = &truth->lifetimes[i];
    int alive = 0;
    for (size_t j = 0; j < truth->count && same_channel(&posted->receive, &channel->sample); j++) {
      const struct lifetime *other = &truth->lifetimes[j];
      alive += same_channel(&other->receive, &channel->sample) &&
               other->posted_sequence <= posted->posted_sequence &&
               (other->last_sequence > posted->posted_sequence || other == posted);
    }
    if (alive > depth) depth = alive;
  }
  return depth;
}

static int receives_of(const struct rp_truth *truth, const struct channel *channel) {
  int receives = 0;
  for (size_t i = 0; i < truth->count; i++)
    receives += same_channel(&truth->lifetimes[i].receive, &channel->sample);
  return receives;
}

void rp_truth_mistake(struct rp_truth *truth, const struct rp_truth_mistake *m) {
  if (truth->file == NULL) return;
  write_line(truth,
             json_pack("{ss,ss,ss,si,si,ss,si,so,sI,so,ss,si}", "type", "mistake", "kind",
                       rp_mistake_name(m->kind), "side", m->earlier ? "earlier" : "later", "step", m->pass,
                       "stage", m->stage, "direction", direction_name(m->direction), "microbatch",
                       m->microbatch, "address", hexadecimal(m->address), "bytes", (json_int_t)m->bytes,
                       "stream", hexadecimal((uintptr_t)m->stream), "call", m->call, "result", m->result));
}

void rp_truth_drop_step(struct rp_truth *truth) {
  truth->count = 0;
}

void rp_truth_end_step(struct rp_truth *truth, int32_t pass, bool evaluation) {
  if (truth->file != NULL) {
    for (size_t i = 0; i < truth->count; i++) {
      write_lifetime(truth, &truth->lifetimes[i], pass, evaluation);
      note_address(channel_of(truth, &truth->lifetimes[i].receive), truth->lifetimes[i].receive.address);
    }
    for (struct channel *c = truth->channels; c != NULL; c = c->next) {
      json_array_append_new(c->depths, json_integer(depth_of(truth, c)));
      json_array_append_new(c->receives, json_integer(receives_of(truth, c)));
    }
    fflush(truth->file);
  }
  truth->count = 0;
}

static void write_summary(struct rp_truth *truth, const void *communicator, struct rp_truth_bytes bytes) {
  const struct rp_trainer_options *o = truth->options;
  write_line(truth,
             json_pack("{ss,si,si,si,si,sI,sI,ss,ss,so}", "type", "summary", "rank", truth->rank, "pid",
                       (int)getpid(), "steps", o->steps, "microbatches", truth->microbatches, "held_bytes",
                       (json_int_t)bytes.held, "left_bytes", (json_int_t)bytes.left, "allocation",
                       rp_allocation_name(o->allocation), "schedule", o->random ? "random" : o->schedule,
                       "comm_address", hexadecimal((uintptr_t)communicator)));
}

void rp_truth_destroy(struct rp_truth *truth, const void *communicator, struct rp_truth_bytes bytes) {
  while (truth->channels != NULL) {
    struct channel *c = truth->channels;
    write_line(truth, json_pack("{ss,si,si,ss,si,si,sI,sO,sO}", "type", "channel", "stage", c->sample.stage,
                                "stage_ordinal", c->sample.stage_ordinal, "direction",
                                direction_name(c->sample.direction), "peer", c->sample.peer, "buffers",
                                (int)c->address_count, "bytes", (json_int_t)c->sample.bytes, "depth_per_step",
                                c->depths, "receives_per_step", c->receives));
    truth->channels = c->next;
    json_decref(c->depths);
    json_decref(c->receives);
    free(c->addresses);
    free(c);
  }
  if (truth->file != NULL) {
    write_summary(truth, communicator, bytes);
    if (fclose(truth->file) != 0) rp_die("cannot write the record of rank %d", truth->rank);
  }
  free(truth->lifetimes);
  free(truth);
}

/* Answering sends. Owns, for each peer and size, the receives that wait for one. */
#include "pool/answers.h"
#include "pool/tracker_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- families ---- */

static struct rp_answer_family *find(struct rp_answers *answers, const struct rp_event *event) {
  for (size_t i = 0; i < answers->family_count; i++) {
    struct rp_answer_family *family = &answers->families[i];
    if (family->comm == event->comm && family->peer == event->peer && family->bytes == event->bytes)
      return family;
  }
  return NULL;
}

/* Where there would be too many, for communicators are re-created for ever: one that nobody waits in, else
 * the one that has waited longest. */
static struct rp_answer_family *reusable(struct rp_answers *answers) {
  struct rp_answer_family *oldest = NULL;
  uint64_t oldest_seq = UINT64_MAX;
  for (size_t i = 0; i < answers->family_count; i++) {
    struct rp_answer_family *family = &answers->families[i];
    if (family->count == 0) return family;
    if (family->waiting[family->first].posted_seq >= oldest_seq) continue;
    oldest = family;
    oldest_seq = family->waiting[family->first].posted_seq;
  }
  return oldest;
}

static struct rp_answer_family *find_or_add(struct rp_answers *answers, const struct rp_event *event) {
  struct rp_answer_family *family = find(answers, event);
  if (family) return family;
  if (answers->family_count >= RP_PEERS_KEPT) {
    family = reusable(answers);
    family->comm = event->comm;
    family->peer = event->peer;
    family->bytes = event->bytes;
    family->first = family->count = 0;
    return family;
  }
  if (answers->family_count == answers->family_capacity) {
    size_t capacity = answers->family_capacity ? 2 * answers->family_capacity : 8;
    struct rp_answer_family *grown = realloc(answers->families, capacity * sizeof *grown);
    if (!grown) return NULL;
    answers->families = grown;
    answers->family_capacity = capacity;
  }
  family = &answers->families[answers->family_count++];
  *family = (struct rp_answer_family){.comm = event->comm, .peer = event->peer, .bytes = event->bytes};
  return family;
}

static void drop_first(struct rp_answer_family *family) {
  family->first = (family->first + 1) % family->capacity;
  family->count--;
}

static bool make_room(struct rp_answer_family *family) {
  if (family->count < family->capacity) return true;
  if (family->capacity >= RP_ANSWERS_WAITING) {
    drop_first(family);
    return true;
  }
  size_t capacity = family->capacity ? 2 * family->capacity : 16;
  struct rp_answer_entry *grown = malloc(capacity * sizeof *grown);
  if (!grown) return false;
  for (size_t i = 0; i < family->count; i++)
    grown[i] = family->waiting[(family->first + i) % family->capacity];
  free(family->waiting);
  family->waiting = grown;
  family->first = 0;
  family->capacity = capacity;
  return true;
}

/* Whether the buffer has been received into again since: then no answer is to come any more, for the step is
 * over. One that was freed meanwhile may still be answered. */
static bool is_over(const struct rp_tracker *tracker, const struct rp_answer_entry *entry) {
  const struct rp_buffer *buffer = &tracker->buffers[entry->buffer];
  if (!buffer->in_use || buffer->serial != entry->serial) return false;
  const struct rp_life *life = rp__open_life((struct rp_tracker *)tracker, (struct rp_buffer *)buffer);
  return life && life->public.posted_seq != entry->posted_seq;
}

void rp__answers_receive(struct rp_tracker *tracker, const struct rp_event *event, size_t buffer) {
  struct rp_answer_family *family = find_or_add(&tracker->answers, event);
  while (family && family->count && is_over(tracker, &family->waiting[family->first]))
    drop_first(family);
  if (!family || !make_room(family)) return; /* only evidence is lost */
  family->waiting[(family->first + family->count++) % family->capacity] =
      (struct rp_answer_entry){buffer, tracker->buffers[buffer].serial, event->seq};
}

/* ---- sends ---- */

/* Whether activations come from this peer. */
static bool is_before_us(const struct rp_tracker *tracker, uint64_t comm, int32_t peer, uint64_t bytes) {
  return rp__peers_side(&tracker->peers, comm, peer, bytes) == RP_DIRECTION_ACTIVATION;
}

/* What was received from the process that this goes to, over this communicator or one of the same members. */
static struct rp_answer_family *answered_by(struct rp_tracker *tracker, const struct rp_event *event) {
  struct rp_answers *answers = &tracker->answers;
  struct rp_answer_family *same = find(answers, event);
  for (size_t i = 0; i < answers->family_count && (!same || !same->count); i++) {
    struct rp_answer_family *family = &answers->families[i];
    if (family->peer == event->peer && family->bytes == event->bytes &&
        rp__peers_same_members(&tracker->peers, event->comm, family->comm))
      same = family;
  }
  return same;
}

/* When the work that made what is sent had been handed to the device. */
static struct rp_answer_group moment_of(const struct rp_answers *answers, const struct rp_event *event) {
  for (size_t i = 0; i < RP_ANSWER_GROUPS; i++)
    if (event->tid && answers->groups[i].tid == event->tid) return answers->groups[i];
  return (struct rp_answer_group){event->tid, event->seq, event->time_ns};
}

static void answer_oldest(struct rp_tracker *tracker, struct rp_answer_family *family,
                          const struct rp_answer_group *moment) {
  if (!family || family->count == 0) return;
  const struct rp_answer_entry entry = family->waiting[family->first];
  drop_first(family);
  struct rp_buffer *buffer = &tracker->buffers[entry.buffer];
  struct rp_life *life =
      buffer->in_use && buffer->serial == entry.serial ? rp__open_life(tracker, buffer) : NULL;
  if (!life || life->public.posted_seq != entry.posted_seq) return; /* over already */
  bool later = moment->seq > entry.posted_seq;
  life->answered_seq = later ? moment->seq : entry.posted_seq;
  life->answered_ns = later ? moment->time_ns : life->public.posted_ns;
}

/* Of the gradients of this size, from whichever peer, the one that has waited longest. */
static struct rp_answer_family *oldest_gradient(const struct rp_tracker *tracker, uint64_t bytes) {
  struct rp_answer_family *oldest = NULL;
  uint64_t oldest_seq = UINT64_MAX;
  for (size_t i = 0; i < tracker->answers.family_count; i++) {
    struct rp_answer_family *family = &tracker->answers.families[i];
    if (family->bytes != bytes || family->count == 0 ||
        family->waiting[family->first].posted_seq >= oldest_seq ||
        is_before_us(tracker, family->comm, family->peer, bytes))
      continue;
    oldest = family;
    oldest_seq = family->waiting[family->first].posted_seq;
  }
  return oldest;
}

void rp__answers_send(struct rp_tracker *tracker, const struct rp_event *event) {
  if (!is_before_us(tracker, event->comm, event->peer, event->bytes)) return;
  struct rp_answer_group moment = moment_of(&tracker->answers, event);
  answer_oldest(tracker, answered_by(tracker, event), &moment);
  answer_oldest(tracker, oldest_gradient(tracker, event->bytes), &moment);
}

void rp__answers_group(struct rp_tracker *tracker, const struct rp_event *event) {
  struct rp_answer_group *place = NULL;
  for (size_t i = 0; i < RP_ANSWER_GROUPS; i++) {
    struct rp_answer_group *group = &tracker->answers.groups[i];
    if (group->tid == event->tid) {
      place = group;
      break;
    }
    if (!group->tid && !place) place = group;
  }
  if (!place || !event->tid) return;
  bool begins = event->kind == RP_EVENT_GROUP_START;
  *place =
      begins ? (struct rp_answer_group){event->tid, event->seq, event->time_ns} : (struct rp_answer_group){0};
}

size_t rp__answers_bytes(const struct rp_answers *answers) {
  size_t bytes = answers->family_capacity * sizeof *answers->families;
  for (size_t i = 0; i < answers->family_count; i++)
    bytes += answers->families[i].capacity * sizeof(struct rp_answer_entry);
  return bytes;
}

void rp__answers_fini(struct rp_tracker *tracker) {
  for (size_t i = 0; i < tracker->answers.family_count; i++)
    free(tracker->answers.families[i].waiting);
  free(tracker->answers.families);
  memset(&tracker->answers, 0, sizeof tracker->answers);
}

/* Peers: which side of the pipeline each is on, told by what was exchanged with it first. Owns the list of
 * peers and what is known of communicators. */
#include "pool/tracker_internal.h"

#include <stdlib.h>

/* ---- communicators ---- */

static struct rp_comm_shape *shape_of(const struct rp_peers *peers, uint64_t comm) {
  for (size_t i = 0; i < peers->comm_count; i++)
    if (peers->comms[i].comm == comm) return (struct rp_comm_shape *)&peers->comms[i];
  return NULL;
}

void rp__peers_comm(struct rp_peers *peers, const struct rp_event *event) {
  struct rp_comm_shape *shape = shape_of(peers, event->comm);
  if (!shape && peers->comm_count < RP_COMMS_KEPT) shape = &peers->comms[peers->comm_count++];
  if (!shape) return; /* nothing is known of it, then */
  *shape = (struct rp_comm_shape){event->comm, event->bytes, event->peer};
}

/* Communicators of two are made for each pair of neighbours, and then the same numbers are other processes.
 */
bool rp__peers_same_members(const struct rp_peers *peers, uint64_t comm, uint64_t other) {
  const struct rp_comm_shape *one = shape_of(peers, comm), *two = shape_of(peers, other);
  if (comm == other) return true;
  if (!one || !two || one->rank < 0 || one->rank != two->rank || one->ranks != two->ranks) return false;
  return one->ranks > 2 || (int64_t)one->ranks == peers->world_size;
}

/* ---- peers ---- */

/* Of communicator `comm`, or with 0 of all. */
static void forget_ended(struct rp_peers *peers, uint64_t comm) {
  size_t kept = 0;
  for (size_t i = 0; i < peers->count; i++)
    if (!peers->at[i].ended || (comm && peers->at[i].comm != comm)) peers->at[kept++] = peers->at[i];
  peers->count = kept;
}

void rp__peers_end(struct rp_peers *peers, uint64_t comm) {
  struct rp_comm_shape *shape = shape_of(peers, comm);
  for (size_t i = 0; i < peers->count; i++)
    peers->at[i].ended |= peers->at[i].comm == comm;
  if (shape) *shape = peers->comms[--peers->comm_count];
}

/* Something was sent before over a communicator that this one may belong together with. */
static bool sent_elsewhere(const struct rp_peers *peers, uint64_t comm) {
  for (size_t i = 0; i < peers->count; i++) {
    const struct rp_peer_order *peer = &peers->at[i];
    if (!peer->ended && peer->sent && !rp__peers_same_members(peers, comm, peer->comm)) return true;
  }
  return false;
}

/* The same process under another communicator, where that is sure. */
static const struct rp_peer_order *known_elsewhere(const struct rp_peers *peers,
                                                   const struct rp_event *event) {
  for (size_t i = 0; i < peers->count; i++) {
    const struct rp_peer_order *peer = &peers->at[i];
    if (!peer->ended && peer->peer == event->peer && peer->bytes == event->bytes &&
        rp__peers_same_members(peers, event->comm, peer->comm))
      return peer;
  }
  return NULL;
}

/* Sides are told by the first exchange with the process, over whichever communicator. A message that comes
 * over a communicator of its own when others have taken something away already may be a gradient as well as
 * an activation, until something goes back the same way. */
static void find_side(const struct rp_peers *peers, const struct rp_event *event,
                      struct rp_peer_order *made) {
  const struct rp_peer_order *known = known_elsewhere(peers, event);
  int64_t distance = (int64_t)event->peer - peers->rank;
  bool receives = event->kind == RP_EVENT_RECV;
  made->receive_first = receives;
  if (peers->rank_assumed && (distance == 1 || distance == -1)) {
    made->receive_first = distance < 0;
  } else if (known) {
    made->receive_first = known->receive_first;
    made->unclear = known->unclear;
  } else {
    made->unclear = receives && sent_elsewhere(peers, event->comm);
  }
}

static struct rp_peer_order *find(struct rp_peers *peers, const struct rp_event *event) {
  for (size_t i = 0; i < peers->count; i++) {
    struct rp_peer_order *known = &peers->at[i];
    if (known->comm != event->comm) continue;
    if (known->ended) { /* the handle belongs to another communicator now, whose peers are others */
      forget_ended(peers, event->comm);
      return NULL;
    }
    if (known->peer == event->peer && known->bytes == event->bytes) return known;
  }
  return NULL;
}

static struct rp_peer_order *add(struct rp_peers *peers, const struct rp_event *event) {
  if (peers->count >= RP_PEERS_KEPT) forget_ended(peers, 0);
  if (peers->count == peers->capacity) {
    size_t capacity = peers->capacity ? 2 * peers->capacity : 16;
    struct rp_peer_order *grown = realloc(peers->at, capacity * sizeof *grown);
    if (!grown) return NULL; /* Only the direction stays unknown. */
    peers->at = grown;
    peers->capacity = capacity;
  }
  struct rp_peer_order made = {.comm = event->comm, .bytes = event->bytes, .peer = event->peer};
  find_side(peers, event, &made);
  peers->at[peers->count] = made;
  return &peers->at[peers->count++];
}

void rp__peers_note(struct rp_peers *peers, const struct rp_event *event) {
  struct rp_peer_order *peer = find(peers, event);
  if (!peer) peer = add(peers, event);
  if (!peer || event->kind != RP_EVENT_SEND) return;
  peer->sent = true;
  peers->cleared += peer->unclear;
  peer->unclear = false;
}

enum rp_direction rp__peers_side(const struct rp_peers *peers, uint64_t comm, int32_t number,
                                 uint64_t bytes) {
  for (size_t i = 0; i < peers->count; i++) {
    const struct rp_peer_order *peer = &peers->at[i];
    if (peer->comm != comm || peer->peer != number || peer->bytes != bytes) continue;
    if (peer->unclear) return RP_DIRECTION_UNKNOWN;
    return peer->receive_first ? RP_DIRECTION_ACTIVATION : RP_DIRECTION_GRADIENT;
  }
  return RP_DIRECTION_UNKNOWN;
}

void rp__peers_fini(struct rp_peers *peers) {
  free(peers->at);
  peers->at = NULL;
  peers->count = peers->capacity = 0;
}

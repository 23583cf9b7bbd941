/** @file pieces.h
 * What sharing saves where the device gives memory in pieces: each buffer and each slot takes whole ones.
 */
#ifndef RP_AGENT_PIECES_H
#define RP_AGENT_PIECES_H

#include <stddef.h>
#include <stdint.h>

/** What devices so far give memory in, where nobody has asked this one. */
#define RP_USUAL_PIECE_BYTES (UINT64_C(2) << 20)

/** Buffers of one size in one process that share with one another, or do not. */
struct rp_pieces_class {
  uint64_t buffer_bytes; /**< of each */
  uint64_t held_bytes;   /**< of all of them, as the driver gives them without sharing */
  uint64_t left;         /**< how many would be backed: slots where they share, else all buffers */
};

/** Bytes that sharing saves of the classes of one process, which it sorts. Where it saves nothing of the
 * classes that have one size in pieces, the agent leaves them to the driver: they count as nothing. */
uint64_t rp_pieces_saving(struct rp_pieces_class *classes, size_t count, uint64_t piece_bytes);

#endif

/** @file event.h
 * The event record shared by every part: CUPTI callbacks, the call interposer, the NCCL profiler plugin,
 * uprobes, recorded traces and tests all speak it, and the tracker understands nothing else.
 *
 * Fixed-width fields only and no padding the compiler chooses: bpf/ and trace files use the same bytes.
 */
#ifndef RECVPOOL_EVENT_H
#define RECVPOOL_EVENT_H

#ifndef __bpf__
#include <stddef.h>
#include <stdint.h>
#endif

#define RP_EVENT_VERSION 1
/** How many companions one access event can carry; what is more is counted in companions_dropped. */
#define RP_EVENT_COMPANIONS 8

/** What happened. "address" fields are device addresses unless said otherwise. */
enum rp_event_kind {
  RP_EVENT_NONE = 0,
  RP_EVENT_ALLOC = 1,       /**< address, bytes, aux = enum rp_alloc_api; after the call succeeded */
  RP_EVENT_FREE = 2,        /**< address; before the call */
  RP_EVENT_RECV = 3,        /**< a receive is posted: comm, peer, address, bytes, stream; before the call */
  RP_EVENT_SEND = 4,        /**< a send is posted: comm, peer, address, bytes, stream; before the call */
  RP_EVENT_GROUP_START = 5, /**< outermost ncclGroupStart of a thread */
  RP_EVENT_GROUP_END = 6,   /**< outermost ncclGroupEnd of a thread */
  RP_EVENT_COMM_INIT =
      7, /**< comm, peer = own rank in it, bytes = number of ranks, aux = hash of its unique id */
  RP_EVENT_COMM_DESTROY = 8, /**< comm; destroy or abort (aux = 1 when aborted) */
  RP_EVENT_KERNEL = 9, /**< a launch names `address` at byte arg_offset of its parameters; function, stream */
  RP_EVENT_COPY_READ = 10,    /**< a copy reads [address, address + bytes) */
  RP_EVENT_COPY_WRITE = 11,   /**< a copy writes [address, address + bytes) */
  RP_EVENT_MEMSET = 12,       /**< a memset writes [address, address + bytes) */
  RP_EVENT_GRAPH_LAUNCH = 13, /**< aux = graph exec handle */
  RP_EVENT_EVENT_RECORD = 14, /**< aux = event handle, stream */
  RP_EVENT_STREAM_WAIT = 15,  /**< aux = event handle, stream is the one that waits */
  RP_EVENT_HOST_SYNC = 16,    /**< aux = 0 device, 1 stream, 2 event; the host waited */
  RP_EVENT_LABEL = 17,        /**< NVTX range: function = id of its text, aux = 1 push, 0 pop */
  RP_EVENT_KIND_COUNT = 18
};

/** Where an event was seen. */
enum rp_event_source {
  RP_SOURCE_NONE = 0,
  RP_SOURCE_INTERPOSER = 1,
  RP_SOURCE_CUPTI = 2,
  RP_SOURCE_NCCL_PROFILER = 3,
  RP_SOURCE_UPROBE = 4,
  RP_SOURCE_TRACE = 5, /**< a recorded trace or a schedule on paper */
  RP_SOURCE_COUNT = 6
};

/** Which kind of call made an allocation (RP_EVENT_ALLOC, field aux). */
enum rp_alloc_api {
  RP_ALLOC_MALLOC = 0, /**< cudaMalloc, cuMemAlloc */
  RP_ALLOC_ASYNC = 1,  /**< stream-ordered */
  RP_ALLOC_VMM = 2,    /**< cuMemMap */
  RP_ALLOC_MANAGED = 3,
  RP_ALLOC_OTHER = 4
};

#define RP_EVENT_FLAG_AFTER 1u    /**< seen only after the call went on (profiler plugin): never a gate */
#define RP_EVENT_FLAG_CAPTURED 2u /**< made while its stream was being captured into a graph */
#define RP_EVENT_FLAG_PDL 4u      /**< launch with programmatic stream serialisation */
#define RP_EVENT_FLAG_INPLACE 8u  /**< further hit of the same launch as the event before it */

/** One observed call. Unused fields are zero. */
struct rp_event {
  uint16_t version; /**< RP_EVENT_VERSION */
  uint16_t kind;    /**< enum rp_event_kind */
  uint16_t source;  /**< enum rp_event_source */
  uint16_t flags;   /**< RP_EVENT_FLAG_* */
  uint32_t pid;
  uint32_t tid;
  uint64_t seq;     /**< order in the process: the order in which the host made the calls */
  uint64_t time_ns; /**< CLOCK_MONOTONIC */
  uint64_t address;
  uint64_t bytes;
  uint64_t stream;   /**< stream handle; 1 is the legacy stream, 2 the calling thread's default stream */
  uint64_t comm;     /**< communicator handle in this process */
  uint64_t function; /**< id of the kernel (agent: function handle; trace: index of its name) */
  uint64_t aux;
  uint64_t operations; /**< launches, copies and memsets the process had begun before this event */
  int32_t peer;        /**< rank in comm; -1 where there is none */
  int32_t device;      /**< device ordinal; -1 if unknown */
  uint32_t arg_offset; /**< RP_EVENT_KERNEL: byte offset of the word that named `address` */
  uint16_t companion_count;
  uint16_t companions_dropped;
  /** RP_EVENT_KERNEL: other device addresses that the same launch names and that lie in known allocations, in
   *  parameter order. They tell stages apart (weights) and which buffers one kernel reads together. */
  uint64_t companion[RP_EVENT_COMPANIONS];
};

#ifndef __bpf__
#ifdef __cplusplus
static_assert(sizeof(struct rp_event) == 168, "the event record is a wire format");
#else
_Static_assert(sizeof(struct rp_event) == 168, "the event record is a wire format");
_Static_assert(offsetof(struct rp_event, seq) == 16 && offsetof(struct rp_event, companion) == 104,
               "the event record is a wire format");
#endif
#endif
#endif

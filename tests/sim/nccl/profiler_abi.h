/** @file profiler_abi.h
 * What profiler plugins of the versions 1 to 6 are given, by offset (x86-64 and AArch64 agree). Only the
 * members that the simulated library fills in are named.
 */
#ifndef RPSIM_NCCL_PROFILER_ABI_H
#define RPSIM_NCCL_PROFILER_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum sim_profiler_event {
  SIM_EVENT_GROUP = 1,
  SIM_EVENT_COLL = 2,
  SIM_EVENT_P2P = 4,
  SIM_EVENT_BELOW =
      8 | 16 | 64 | 128, /**< proxy, kernel channel, network: never raised, but they ask for parents */
  SIM_EVENT_GROUP_API = 256,
  SIM_EVENT_COLL_API = 512,
  SIM_EVENT_P2P_API = 1024,
  SIM_EVENT_KERNEL_LAUNCH = 2048,
};
enum sim_profiler_state { SIM_STATE_GROUP_START_API_STOP = 23, SIM_STATE_GROUP_END_API_START = 24 };

/** The exported structure `ncclProfiler_vN`; init's type depends on N. */
struct sim_profiler_table {
  const char *name;
  void (*init)(void);
  int (*start)(void *context, void **event, void *descriptor);
  int (*stop)(void *event);
  int (*record)(void *event, int state, void *arguments);
  int (*finalize)(void *context);
};
typedef void (*sim_profiler_logger)(int level, unsigned long flags, const char *file, int line,
                                    const char *format, ...);
typedef int (*sim_profiler_init_v1)(void **context, int *mask); /* to v3 */
typedef int (*sim_profiler_init_v4)(void **context, int *mask, const char *name, uint64_t hash, int nodes,
                                    int nranks, int rank, sim_profiler_logger log);
typedef int (*sim_profiler_init_v5)(void **context, uint64_t id, int *mask, const char *name, int nodes,
                                    int nranks, int rank, sim_profiler_logger log); /* to v6 */

struct sim_descriptor_v1 {
  uint8_t type;
  void *parent;
  int rank;
  union {
    struct {
      const char *name;
      uint64_t hash;
      uint8_t function;
      void *buffer;
      uint8_t type;
      size_t count;
      int peer;
    } p2p;
    struct {
      const char *name;
      uint64_t hash, sequence;
      uint8_t function;
      const void *send;
      void *receive;
      size_t count;
      int root;
      uint8_t type;
      uint32_t op;
      size_t traffic_bytes;
      uint8_t channels, warps, algorithm, protocol;
      int collnet, nvls;
    } coll;
  };
};

struct sim_descriptor_v2 {
  uint8_t type;
  void *parent;
  int rank;
  union {
    struct {
      const char *name;
      uint64_t hash;
      const char *function;
      void *buffer;
      const char *type;
      size_t count;
      int peer;
    } p2p;
    struct {
      const char *name;
      uint64_t hash, sequence;
      const char *function;
      const void *send;
      void *receive;
      size_t count;
      int root;
      const char *type;
      size_t traffic_bytes;
      uint8_t channels, warps;
      const char *algorithm, *protocol;
    } coll;
  };
};

/** As version 2, without the traffic. */
struct sim_descriptor_v3 {
  uint8_t type;
  void *parent;
  int rank;
  union {
    struct {
      const char *name;
      uint64_t hash;
      const char *function;
      void *buffer;
      const char *type;
      size_t count;
      int peer;
    } p2p;
    struct {
      const char *name;
      uint64_t hash, sequence;
      const char *function;
      const void *send;
      void *receive;
      size_t count;
      int root;
      const char *type;
      uint8_t channels, warps;
      const char *algorithm, *protocol;
    } coll;
  };
};

struct sim_descriptor_v4 {
  uint8_t type;
  void *parent;
  int rank;
  union {
    struct {
      const char *function;
      void *buffer;
      const char *type;
      size_t count;
      int peer;
      uint8_t channels;
    } p2p;
    struct {
      uint64_t sequence;
      const char *function;
      const void *send;
      void *receive;
      size_t count;
      int root;
      const char *type;
      uint8_t channels, warps;
      const char *algorithm, *protocol;
    } coll;
  };
};

/** Versions 5 and 6. */
struct sim_descriptor_v5 {
  uint64_t type;
  void *parent;
  int rank;
  union {
    struct {
      bool captured;
      int depth;
    } group_api;
    struct {
      const char *function;
      size_t count;
      const char *type;
      int root;
      void *stream;
      bool captured;
    } coll_api;
    struct {
      const char *function;
      size_t count;
      const char *type;
      void *stream;
      bool captured;
    } p2p_api;
    struct {
      void *stream;
    } kernel_launch;
    struct {
      const char *function;
      void *buffer;
      const char *type;
      size_t count;
      int peer;
      uint8_t channels;
      void *parent_group;
    } p2p;
    struct {
      uint64_t sequence;
      const char *function;
      const void *send;
      void *receive;
      size_t count;
      int root;
      const char *type;
      uint8_t channels, warps;
      const char *algorithm, *protocol;
      void *parent_group;
    } coll;
  };
};

#define SIM_AT(version, member, offset)                                                                      \
  _Static_assert(offsetof(struct sim_descriptor_v##version, member) == (offset), "offset of " #member)
#define SIM_SIZE(version, bytes)                                                                             \
  _Static_assert(sizeof(struct sim_descriptor_v##version) == (bytes), "size of version " #version)

#define SIM_HEAD(version)                                                                                    \
  SIM_AT(version, type, 0);                                                                                  \
  SIM_AT(version, parent, 8);                                                                                \
  SIM_AT(version, rank, 16)
#define SIM_P2P(version, start)                                                                              \
  SIM_AT(version, p2p.function, start);                                                                      \
  SIM_AT(version, p2p.buffer, start + 8);                                                                    \
  SIM_AT(version, p2p.type, start + 16);                                                                     \
  SIM_AT(version, p2p.count, start + 24);                                                                    \
  SIM_AT(version, p2p.peer, start + 32)

SIM_HEAD(1);
SIM_HEAD(2);
SIM_HEAD(3);
SIM_HEAD(4);
SIM_HEAD(5);
SIM_P2P(1, 40);
SIM_P2P(2, 40);
SIM_P2P(3, 40);
SIM_P2P(4, 24);
SIM_P2P(5, 24);
SIM_AT(4, p2p.channels, 60);
SIM_AT(5, p2p.channels, 60);
SIM_AT(5, p2p.parent_group, 64);
SIM_AT(5, p2p_api.function, 24);
SIM_AT(5, p2p_api.count, 32);
SIM_AT(5, p2p_api.type, 40);
SIM_AT(5, p2p_api.stream, 48);
SIM_AT(5, p2p_api.captured, 56);
SIM_AT(5, kernel_launch.stream, 24);
SIM_SIZE(1, 120);
SIM_SIZE(2, 128);
SIM_SIZE(3, 120);
SIM_SIZE(4, 104);
SIM_SIZE(5, 112);

#undef SIM_AT
#undef SIM_SIZE
#undef SIM_HEAD
#undef SIM_P2P
#endif

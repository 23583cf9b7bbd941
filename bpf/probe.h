/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/** @file probe.h
 * What the kernel's side of the probes and the loader share: how a probed function is to be read, what is
 * kept of a process, and the records of the ring buffer. Fixed-width fields only; both sides check the sizes.
 */
#ifndef RP_BPF_PROBE_H
#define RP_BPF_PROBE_H

#include "recvpool/event.h"

/** Rows of the function table; a power of two, so that the kernel's side can mask an index. */
#define RP_PROBE_FUNCTIONS 128
/** Pseudo functions that losses of process records are counted under. */
#define RP_PROBE_FUNCTION_PROCESS (RP_PROBE_FUNCTIONS - 1)
/** Arguments kept of a call. */
#define RP_PROBE_ARGUMENTS 6
/** Arguments that are passed in registers. */
#define RP_PROBE_REGISTERS 6
/** Parameters of a launch that are followed, 8-byte words read of each, and words kept in all. */
#define RP_PROBE_PARAMETERS 16
#define RP_PROBE_PARAMETER_WORDS 16
#define RP_PROBE_WORDS 24
/** Communicators of one ncclCommInitAll. */
#define RP_PROBE_COMMS 16

/** Of a probe's cookie: the function's return is probed too. Above are the number of the file, below the row.
 */
#define RP_PROBE_COOKIE_RETURNS 0x8000u

/** Whether calls are seen. Processes are followed from before that on, until it is over. */
enum rp_probe_active { RP_PROBE_NOT_YET = 0, RP_PROBE_NOW = 1, RP_PROBE_OVER = 2 };

/** What a probed function does. */
enum rp_probe_class {
  RP_PROBE_NONE = 0,
  RP_PROBE_ALLOC = 1,   /**< writes an address to *out */
  RP_PROBE_FREE = 2,    /**< takes an address */
  RP_PROBE_CREATE = 3,  /**< physical memory: writes a handle to *out */
  RP_PROBE_RELEASE = 4, /**< takes a handle */
  RP_PROBE_MAP = 5,     /**< maps at an address that it takes */
  RP_PROBE_UNMAP = 6,
  RP_PROBE_RECV = 7,
  RP_PROBE_SEND = 8,
  RP_PROBE_GROUP_START = 9,
  RP_PROBE_GROUP_END = 10,
  RP_PROBE_COMM_INIT = 11,
  RP_PROBE_COMM_INIT_ALL = 12,
  RP_PROBE_COMM_SPLIT = 13,
  RP_PROBE_COMM_DESTROY = 14,
  RP_PROBE_COMM_ABORT = 15,
  RP_PROBE_BRACKET = 16, /**< only to be known as NCCL's own while it runs */
  RP_PROBE_LAUNCH = 17,
  RP_PROBE_COPY = 18,
  RP_PROBE_MEMSET = 19,
  RP_PROBE_LOADER = 20,    /**< the dynamic loader has mapped something */
  RP_PROBE_RESERVE = 21,   /**< address space: writes an address to *out */
  RP_PROBE_UNRESERVE = 22, /**< takes an address */
  RP_PROBE_CLASS_COUNT = 23
};

/** Which library a function belongs to. Calls of one layer can be nested in calls of the one above. */
enum rp_probe_layer { RP_PROBE_RUNTIME = 0, RP_PROBE_DRIVER = 1, RP_PROBE_NCCL = 2, RP_PROBE_SYSTEM = 3 };

/** How to read a call. Arguments are counted from 1, those past the sixth are on the stack; 0: there is none.
 */
struct rp_probe_shape {
  uint8_t class_;      /**< enum rp_probe_class */
  uint8_t layer;       /**< enum rp_probe_layer */
  uint8_t api;         /**< enum rp_alloc_api */
  uint8_t null_stream; /**< what stream 0 means: 1 legacy, 2 the thread's own */
  uint8_t out, address, bytes, pitch, height, stream;
  uint8_t source; /**< copies */
  uint8_t ranks, rank;
  uint8_t id;               /**< pointer to a communicator's id */
  uint8_t id_on_stack;      /**< the id itself lies on the stack, from its first word on */
  uint8_t function, params; /**< launches */
  uint8_t config;           /**< launches: struct that holds the stream */
  uint8_t unit_log2;        /**< bytes counts units of this size */
  uint8_t reserved[5];
};

/** Kept per process while it is observed; key: process id. */
struct rp_probe_process {
  uint64_t generation;            /**< when observation began, ns: tells two processes with one id apart */
  uint64_t dropped;               /**< events of it that were lost */
  uint64_t ended;                 /**< not 0: it has ended, and the record of that found no room */
  uint64_t generation_before;     /**< of the program that it was before, whose end found no room; or 0 */
  uint64_t dropped_before;        /**< events of that program that were lost */
  uint64_t in_flight;             /**< transfers whose call has not returned */
  uint64_t operations;            /**< launches, copies and memsets begun */
  uint64_t recv_low, recv_high;   /**< bounds of everything received into */
  uint64_t alloc_low, alloc_high; /**< bounds of everything allocated */
  uint64_t events[RP_EVENT_KIND_COUNT]; /**< by kind; also those that were lost */
};

/** Per CPU and function. */
struct rp_probe_count {
  uint64_t calls;   /**< hits of the entry */
  uint64_t returns; /**< returns of calls that were not nested in others of their layer */
  uint64_t failed;  /**< of these, with a status other than 0 */
  uint64_t dropped; /**< records that found no room */
  int64_t last_failure;
};

/** What a record tells. */
enum rp_probe_what {
  RP_PROBE_WHAT_EVENT = 0,
  RP_PROBE_WHAT_LAUNCH = 1, /**< struct rp_probe_launch */
  RP_PROBE_WHAT_SPLIT = 2,  /**< COMM_INIT by split: event.function = parent, event.aux = colour */
  RP_PROBE_WHAT_CALL = 3,   /**< a call returned: companion = arguments, status */
  RP_PROBE_WHAT_FORK = 4,   /**< event.pid is the child, event.aux its parent */
  RP_PROBE_WHAT_EXEC = 5,
  RP_PROBE_WHAT_EXIT = 6,   /**< of EXEC too: event.bytes = lost events, event.operations = calls in flight */
  RP_PROBE_WHAT_SEEN = 7,   /**< first hit of a process */
  RP_PROBE_WHAT_LOADER = 8, /**< the process mapped a library */
  RP_PROBE_WHAT_ALIAS = 9,  /**< libraries event.aux and event.function are one file */
  RP_PROBE_WHAT_CREATE = 10, /**< physical memory: event.aux = handle, event.bytes, event.function = caller */
  RP_PROBE_WHAT_RELEASE = 11, /**< event.aux = handle */
  RP_PROBE_WHAT_RESERVE = 12, /**< address space: event.aux = address, event.bytes, event.function = caller */
  RP_PROBE_WHAT_UNRESERVE = 13, /**< event.aux = address */
  RP_PROBE_WHAT_FAILED = 14     /**< a transfer (event.kind) whose call failed */
};

/** Head of every record; `event` is whole only in records of that size. */
struct rp_probe_record {
  uint16_t what;
  uint16_t function;   /**< row of the table */
  int32_t status;      /**< of a call; of the end of a group, 0: what is in it happens; of a transfer, not 0:
                          the end of its group tells */
  uint64_t generation; /**< of the process */
  struct rp_event event;
};

/** A launch that named a receive buffer (or the range they lie in). */
struct rp_probe_launch {
  struct rp_probe_record head;
  uint32_t count, lost;
  uint64_t word[RP_PROBE_WORDS];
  uint16_t place[RP_PROBE_WORDS]; /**< parameter * RP_PROBE_PARAMETER_WORDS + word */
};

#define RP_PROBE_SHORT_RECORD __builtin_offsetof(struct rp_probe_record, event.companion)

_Static_assert(sizeof(struct rp_probe_shape) == 24, "shared with the kernel's side");
_Static_assert(sizeof(struct rp_event) == 168 && sizeof(struct rp_probe_record) == 184,
               "shared with the kernel's side");
_Static_assert(sizeof(struct rp_probe_launch) == 184 + 8 + RP_PROBE_WORDS * 10,
               "shared with the kernel's side");
_Static_assert(RP_PROBE_SHORT_RECORD == 16 + 104, "shared with the kernel's side");

#endif

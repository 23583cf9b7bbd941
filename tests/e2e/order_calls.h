/* The CUDA calls of order_program, by the runtime or by the driver. Each is a direct call, so that it can be
 * interposed. Results are the API's error codes, 0 = success. */
#ifndef ORDER_CALLS_H
#define ORDER_CALLS_H

#include <stdbool.h>
#include <stddef.h>

/* What one launch does beyond running its kernel. */
struct order_launch {
  void *stream;
  void *buffer; /* that the kernel is given: watched or not */
  void *note;   /* for the kernel's body */
  bool programmatic;
  void *start_event, *completion_event; /* recorded by launch attributes, or NULL */
};

struct order_calls {
  const char *name;
  void *legacy, *per_thread; /* handles of the default streams */
  bool default_is_legacy;    /* what the entry points without a stream use */
  int (*set_up)(void);       /* in every thread */
  int (*allocate)(void **out, size_t bytes);
  int (*stream_create)(void **out, bool blocking, int variant);
  int (*stream_destroy)(void *stream);
  int (*event_create)(void **out);
  int (*event_destroy)(void *event);
  int (*record)(void *event, void *stream, bool with_flags);
  int (*wait)(void *stream, void *event);
  int (*stream_sync)(void *stream);
  int (*stream_query)(void *stream);
  int (*event_sync)(void *event);
  int (*event_query)(void *event);
  int (*context_sync)(void);
  int (*launch)(const struct order_launch *launch);
  int (*copy_to_host)(void *to, void *from, size_t bytes);
  int (*copy_to_device)(void *to, void *from, size_t bytes);
  int (*host_function)(void *stream, void (*function)(void *), void *argument);
  int (*capture_begin)(void *stream);
  int (*capture_end)(void *stream, void **graph);
  int (*instantiate)(void **exec, void *graph);
  int (*graph_launch)(void *exec, void *stream);
  int (*exec_destroy)(void *exec);
  int (*graph_destroy)(void *graph);
};

extern const struct order_calls order_calls_runtime, order_calls_driver;

/* The kernel, in order_program.c. */
#define ORDER_KERNEL "order_kernel"
void order_kernel_body(void *const *params);

#endif

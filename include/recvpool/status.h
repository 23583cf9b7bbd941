/** @file status.h
 * The one list of statuses that recvpool's functions return. Zero is success, every failure is negative, and
 * each value has one text (rp_status_text) that a user can read.
 */
#ifndef RECVPOOL_STATUS_H
#define RECVPOOL_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/** Result of a recvpool function. Compare with RP_OK; the numbers are stable within a major version. */
typedef enum rp_status {
  RP_OK = 0,
  RP_ERROR_NO_MEMORY = -1,    /**< host memory could not be had */
  RP_ERROR_INVALID = -2,      /**< an argument is outside what the function takes */
  RP_ERROR_NOT_FOUND = -3,    /**< the thing named does not exist */
  RP_ERROR_EXISTS = -4,       /**< the thing named exists already */
  RP_ERROR_LIMIT = -5,        /**< a stated bound is reached; what was dropped is counted */
  RP_ERROR_SYNTAX = -6,       /**< text that cannot be parsed */
  RP_ERROR_SCHEDULE = -7,     /**< a schedule that is well formed but cannot be run */
  RP_ERROR_VERSION = -8,      /**< a file or library of a version this build does not know */
  RP_ERROR_IO = -9,           /**< reading or writing failed */
  RP_ERROR_UNAVAILABLE = -10, /**< a library, symbol or right is missing on this machine */
  RP_ERROR_BUSY = -11,        /**< somebody else holds what is needed (e.g. the CUPTI subscriber) */
  RP_ERROR_STATE = -12,       /**< the call does not fit the state the object is in */
  RP_ERROR_INTERNAL = -13,    /**< an invariant does not hold; please report it */
} rp_status;

/** One sentence fragment for `status`, never NULL, static storage. Thread-safe. */
const char *rp_status_text(rp_status status);

#ifdef __cplusplus
}
#endif
#endif

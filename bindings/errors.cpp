// SPDX-License-Identifier: Apache-2.0
// C++ exceptions to Python: poptorch._core.Error and its two kinds, with message, type and location
// as strings.
#include <nanobind/nanobind.h>

#include <string>

#include "base/error.h"
#include "bindings.h"

namespace nb = nanobind;

namespace tessera {
namespace {

PyObject* error_type = nullptr;
PyObject* recoverable_type = nullptr;

nb::object made(PyObject* cls, const Error& error, const char* type) {
  const nb::object message = text(error.what());
  nb::object e = nb::handle(cls)(message);
  e.attr("message") = message;
  e.attr("type") = nb::str(type);
  e.attr("location") = text(error.location());
  return e;
}

void raise(const Error& error, const char* type) {
  PyErr_SetObject(error_type, made(error_type, error, type).ptr());
}

void raise(const RecoverableError& error) {
  nb::object e = made(recoverable_type, error, "poplar_recoverable_runtime_error");
  e.attr("recovery_action") = text(error.action());
  PyErr_SetObject(recoverable_type, e.ptr());
}

}  // namespace

nb::str text(const std::string& s) {
  return nb::steal<nb::str>(
      PyUnicode_DecodeUTF8(s.data(), static_cast<Py_ssize_t>(s.size()), "backslashreplace"));
}

void bind_errors(nb::module_& m) {
  error_type = PyErr_NewException("poptorch._core.Error", PyExc_RuntimeError, nullptr);
  m.attr("Error") = nb::handle(error_type);
  recoverable_type = PyErr_NewException("poptorch._core.RecoverableError", error_type, nullptr);
  m.attr("RecoverableError") = nb::handle(recoverable_type);
  m.attr("UnrecoverableError") =
      nb::steal(PyErr_NewException("poptorch._core.UnrecoverableError", error_type, nullptr));
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const MemoryError& e) {
      raise(e, "memory");
    } catch (const UserError& e) {
      raise(e, "tessera");
    } catch (const RecoverableError& e) {
      raise(e);
    } catch (const Interrupted& e) {
      raise(e, "interrupted");
    } catch (const InternalError& e) {
      raise(e, "tessera_internal");
    }
  });
}

}  // namespace tessera

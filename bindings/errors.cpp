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

// File names in a message need not be UTF-8.
nb::object text(const std::string& s) {
  return nb::steal(
      PyUnicode_DecodeUTF8(s.data(), static_cast<Py_ssize_t>(s.size()), "backslashreplace"));
}

void raise(const Error& error, const char* type) {
  const nb::object message = text(error.what());
  nb::object e = nb::handle(error_type)(message);
  e.attr("message") = message;
  e.attr("type") = nb::str(type);
  e.attr("location") = text(error.location());
  PyErr_SetObject(error_type, e.ptr());
}

}  // namespace

void bind_errors(nb::module_& m) {
  error_type = PyErr_NewException("poptorch._core.Error", PyExc_RuntimeError, nullptr);
  m.attr("Error") = nb::handle(error_type);
  m.attr("RecoverableError") =
      nb::steal(PyErr_NewException("poptorch._core.RecoverableError", error_type, nullptr));
  m.attr("UnrecoverableError") =
      nb::steal(PyErr_NewException("poptorch._core.UnrecoverableError", error_type, nullptr));
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const MemoryError& e) {
      raise(e, "memory");
    } catch (const UserError& e) {
      raise(e, "tessera");
    } catch (const Interrupted& e) {
      raise(e, "interrupted");
    } catch (const InternalError& e) {
      raise(e, "tessera_internal");
    }
  });
}

}  // namespace tessera
